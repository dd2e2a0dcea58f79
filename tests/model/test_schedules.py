"""Schedules give the learning rates of their formulas, in a resumed run too, which must have the same settings."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, OneCycleLR, StepLR

from project.engine.errors import UserError
from project.model import CosineWithWarmup
from tests.model.test_classifier import Memory, linear, trainer

RATE = 0.02


class Rates(Callback):
    """Keeps the learning rates of every optimizer step."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append([group["lr"] for group in optimizer.param_groups])


def train(schedule: Any, interval: Any = None, **options: Any) -> tuple[list[list[float]], Any]:
    """The rates of each step of a short training, and its trainer."""
    rates = Rates()
    callbacks = [rates, *options.pop("callbacks", [])]
    run = trainer(limit_val_batches=0, callbacks=callbacks, **options)
    model = linear(optimizer=partial(SGD, lr=RATE), lr_scheduler=schedule, lr_scheduler_interval=interval)
    run.fit(model, datamodule=Memory(batch_size=7))
    return rates.seen, run


def cosine(steps: int, lrf: float, warmup: int) -> list[float]:
    """By the formula of the tutorials, after a warmup in equal steps."""
    falling = steps - warmup
    return [(step + 1) / warmup for step in range(warmup)] + [
        ((1 + math.cos(step * math.pi / falling)) / 2) * (1 - lrf) + lrf for step in range(falling)
    ]


@pytest.mark.parametrize(
    ("options", "steps", "warmup_epochs", "warmup_steps"),
    [
        # 32 images in batches of 7 are 5 batches, and with accumulation 3 steps, in an epoch
        ({"max_epochs": 4, "accumulate_grad_batches": 2}, 12, 1.5, 4),
        ({"max_epochs": 3}, 15, 1, 5),
        ({"max_epochs": 3, "max_steps": 8}, 8, 0.4, 2),
        ({"max_epochs": -1, "max_steps": 8}, 8, 0.4, 2),
        ({"max_epochs": 3, "limit_train_batches": 4, "accumulate_grad_batches": 4}, 3, 0, 0),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 6, 0.5, 1),
    ],
    ids=str,
)
def test_the_cosine_lasts_as_long_as_training_whatever_makes_a_step(options, steps, warmup_epochs, warmup_steps):
    seen, run = train(partial(CosineWithWarmup, lrf=0.01, warmup_epochs=warmup_epochs), **options)
    expected = [[RATE * factor] * 2 for factor in cosine(steps, 0.01, warmup_steps)]  # one for each of the two groups
    assert torch.tensor(seen).double().allclose(torch.tensor(expected).double(), rtol=1e-6)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(RATE * 0.01)


@pytest.mark.filterwarnings("ignore:.*Are you sure you didn't mean:RuntimeWarning")
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("options", [{"max_epochs": 2}, {"max_epochs": 3, "accumulate_grad_batches": 2}], ids=str)
def test_one_cycle_without_a_length_is_as_long_as_training_and_keeps_one_of_its_own(interval, options):
    for make, own in ((OneCycleLR, None), (partial(OneCycleLR, total_steps=77), 77)):
        _, run = train(partial(make, max_lr=0.1), interval, **options)
        (config,) = run.lr_scheduler_configs
        assert config.scheduler.total_steps == own or (run.global_step if interval == "step" else run.current_epoch)


class Falling(LRScheduler):
    """A schedule of the user's that asks for the length of training."""

    interval, total_steps = "step", 1

    def set_length(self, total_steps: int, steps_per_epoch: float) -> None:
        assert total_steps % steps_per_epoch == 0
        self.total_steps = total_steps

    def get_lr(self) -> list[Any]:
        return [rate * (1 - self.last_epoch / self.total_steps) for rate in self.base_lrs]


CHANGING = [GradientAccumulationScheduler({0: 1, 1: 2})]


@pytest.mark.parametrize(
    ("schedule", "interval", "options", "factors"),
    [
        (partial(CosineWithWarmup, warmup_epochs=0), "epoch", {"callbacks": CHANGING}, [1] * 5 + [0.505] * 3),
        (partial(StepLR, step_size=1, gamma=0.5), None, {}, [1] * 5 + [0.5] * 5),
        (partial(StepLR, step_size=1, gamma=0.5), "step", {}, [0.5**step for step in range(10)]),
        (Falling, None, {}, [1 - step / 10 for step in range(10)]),
    ],
    ids=["cosine, accumulation that changes", "each epoch", "each step", "own"],
)
def test_any_schedule_is_stepped_after_each_epoch_or_step(schedule, interval, options, factors):
    seen, _ = train(schedule, interval, max_epochs=2, **options)
    assert [first for first, _ in seen] == pytest.approx([RATE * factor for factor in factors])


@pytest.mark.parametrize(
    ("schedule", "options", "text"),
    [
        (CosineWithWarmup, {"max_epochs": -1}, r"know where training ends; set --trainer\.max_epochs or"),
        (CosineWithWarmup, {"max_epochs": 2, "callbacks": CHANGING}, "add --model.lr_scheduler_interval epoch"),
        (partial(CosineWithWarmup, lrf=2), {}, r"--model\.lr_scheduler\.lrf must be from 0 to 1, got 2"),
    ],
    ids=["endless", "accumulation", "out of range"],
)
def test_what_a_schedule_does_not_accept_is_one_line(schedule, options, text):
    with pytest.raises(UserError, match=text):
        train(schedule, **{"max_epochs": 1} | options)


BEFORE: dict[str, Any] = {"optimizer": partial(SGD, lr=0.1, momentum=0.9)}


def fit(path: Any, resume: Any = None, max_epochs: int = 2, **options: Any) -> list[float]:
    """Trains, saves a checkpoint, and returns the rates of the steps that were taken."""
    run = trainer(max_epochs=max_epochs, limit_val_batches=0, callbacks=[rates := Rates()])
    run.fit(linear(**BEFORE | options), datamodule=Memory(), ckpt_path=resume, weights_only=True)
    run.save_checkpoint(path)
    return [seen[0] for seen in rates.seen]


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({}, {"optimizer": partial(AdamW, lr=0.1)}, "--model.optimizer SGD, .* got AdamW"),
        ({}, {"optimizer": partial(SGD, lr=0.2, momentum=0.9)}, r"--model\.optimizer's lr 0\.1, .* got 0\.2"),
        ({}, {"lr_scheduler": partial(CosineWithWarmup, lrf=0.5)}, r"--model\.lr_scheduler's lrf 0\.01, .* got 0\.5"),
        (
            {"lr_scheduler": partial(MultiStepLR, milestones=[1, 3])},
            {"lr_scheduler": partial(MultiStepLR, milestones=[1, 4])},
            r"milestones \[\[1, 1\], \[3, 1\]\], .* got \[\[1, 1\], \[4, 1\]\]",
        ),
        ({}, {"layer_decay": 0.5}, "lr_scale None"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_settings_are_one_line_that_names_the_way(tmp_path, before, now, text):
    fit(tmp_path / "last.ckpt", **before)
    with pytest.raises(UserError, match=rf"^this run was trained with .*{text}.*--model\.weights .*last\.ckpt --name"):
        fit(tmp_path / "new.ckpt", tmp_path / "last.ckpt", max_epochs=3, **before | now)


@pytest.mark.parametrize(
    "make", [CosineWithWarmup, partial(OneCycleLR, max_lr=0.4), Falling], ids=["cosine", "one cycle", "own"]
)
def test_a_longer_run_stretches_its_schedule(tmp_path, make):
    options = {"lr_scheduler": make, "lr_scheduler_interval": "step"}
    fit(tmp_path / "last.ckpt", **options)
    resumed = fit(tmp_path / "longer.ckpt", tmp_path / "last.ckpt", max_epochs=4, **options)
    whole = fit(tmp_path / "whole.ckpt", max_epochs=4, **options)
    assert resumed[1:] == pytest.approx(whole[5:])  # the first was set at the end of the shorter run
