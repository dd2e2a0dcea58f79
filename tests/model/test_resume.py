"""What a continued run takes from the command, and what from its checkpoint."""

import shutil

import pytest
import torch
from lightning.pytorch import Callback
from torch.optim import SGD
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from project.engine.errors import UserError
from project.model.networks import build_network
from tests.conftest import SLIM, TINY, fit
from tests.small import one_line, small, stop_at

OPTIONS = [*TINY, *SLIM, "--seed_everything=1"]


@pytest.fixture
def unfinished(tiny_run, workplace):
    """A run of one epoch of four steps that has not written its metrics."""
    shutil.copytree(tiny_run, workplace / "runs" / "tiny")
    (workplace / "runs" / "tiny" / "metrics.json").unlink()


def continued(*flags: str):
    """Continues the run by an epoch and returns its trainer."""
    cli = fit(*OPTIONS, "--name=tiny", *flags)
    (cli.run.path / "metrics.json").unlink()
    return cli.trainer


def rates_of(trainer) -> list[float]:
    return [group["lr"] for group in trainer.optimizers[0].param_groups]


@pytest.mark.parametrize(
    ("flags", "reference"),
    [
        (
            [
                "--model.lr_scheduler=OneCycleLR",
                "--model.lr_scheduler.max_lr=0.2",
                "--model.lr_scheduler.total_steps=9",
            ],
            lambda optimizer: OneCycleLR(optimizer, max_lr=0.2, total_steps=9),
        ),
        (
            [
                "--model.lr_scheduler=CyclicLR",
                "--model.lr_scheduler.base_lr=0.01",
                "--model.lr_scheduler.max_lr=0.2",
                "--model.lr_scheduler.step_size_up=3",
            ],
            lambda optimizer: CyclicLR(optimizer, base_lr=0.01, max_lr=0.2, step_size_up=3),
        ),
    ],
    ids=["OneCycleLR", "CyclicLR"],
)
def test_any_schedule_of_torch_gives_its_own_rates(workplace, flags, reference):
    trainer = fit(*OPTIONS, *flags, "--model.lr_scheduler_interval=step", "--name=run").trainer
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    schedule = reference(optimizer)
    for _ in range(trainer.global_step):
        optimizer.step()
        schedule.step()
    assert rates_of(trainer)[0] == pytest.approx(optimizer.param_groups[0]["lr"])
    assert trainer.optimizers[0].param_groups[0]["momentum"] == pytest.approx(optimizer.param_groups[0]["momentum"])


STEPS = ["--model.lr_scheduler=StepLR", "--model.lr_scheduler.step_size=1", "--model.lr_scheduler.gamma=0.5"]


def test_the_same_command_keeps_the_rate_that_a_schedule_had_reached(workplace):
    fit(*OPTIONS, *STEPS, "--name=tiny")
    (workplace / "runs" / "tiny" / "metrics.json").unlink()
    assert rates_of(continued(*STEPS, "--trainer.max_epochs=2")) == pytest.approx([0.025, 0.025])


@pytest.mark.slow
def test_a_rate_is_changed_once_and_by_what_the_command_changed(workplace):
    fit(*OPTIONS, *STEPS, "--name=tiny")
    (workplace / "runs" / "tiny" / "metrics.json").unlink()
    for epochs, rate in ((2, 0.0125), (3, 0.00625)):
        trainer = continued(*STEPS, "--model.optimizer.lr=0.05", f"--trainer.max_epochs={epochs}")
        assert rates_of(trainer) == pytest.approx([rate, rate])


@pytest.mark.slow
def test_a_changed_argument_of_the_schedule_counts(workplace):
    fit(*OPTIONS, *STEPS, "--name=tiny")
    (workplace / "runs" / "tiny" / "metrics.json").unlink()
    trainer = continued(*STEPS, "--model.lr_scheduler.gamma=0.1", "--trainer.max_epochs=2")
    assert rates_of(trainer) == pytest.approx([0.005, 0.005])


def test_weight_decay_stays_off_the_vectors(unfinished):
    trainer = continued("--model.optimizer.weight_decay=0.3", "--trainer.max_epochs=2")
    assert [group["weight_decay"] for group in trainer.optimizers[0].param_groups] == [0.3, 0.0]


@pytest.mark.parametrize("flag", ["--model.optimizer=AdamW", "--model.freeze_backbone=true"])
def test_another_optimizer_or_other_parameters_are_refused(unfinished, flag):
    count = len(list(build_network("resnet9_slim", 8).parameters()))
    with pytest.raises(UserError, match=f"trained by SGD on {count} parameters and cannot resume with"):
        continued(flag, "--trainer.max_epochs=2")


class Rates(Callback):
    """Keeps the learning rate of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.found.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("flag", "max_lr"), [("--model.optimizer.lr=0.9", 0.2), ("--model.lr_scheduler.max_lr=0.4", 0.4)]
)
def test_one_cycle_goes_by_its_own_max_lr_after_a_resume_too(workplace, flag, max_lr):
    one_cycle = [
        "--model.lr_scheduler=OneCycleLR",
        "--model.lr_scheduler.max_lr=0.2",
        "--model.lr_scheduler_interval=step",
    ]
    stop_at(2, *one_cycle)
    small(*one_cycle, flag, callbacks=[rates := Rates()])
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=max_lr, total_steps=8)
    expected = []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates.found == pytest.approx(expected[2:])


def test_a_rate_of_0_is_not_changed(workplace, capsys):
    stop_at(2, "--model.optimizer.lr=0")
    assert "trained at a learning rate of 0 and cannot resume at 0.1" in one_line(
        lambda: small("--model.optimizer.lr=0.1"), capsys
    )
