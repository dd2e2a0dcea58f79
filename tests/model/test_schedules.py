"""Schedules give the learning rates of their formulas, in a resumed run too, which must have the same settings."""

import math
from functools import partial
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, OneCycleLR, StepLR

from project.engine.errors import UserError
from project.model import CosineWithWarmup
from tests.model.test_classifier import Memory, linear, trainer

RATE = 0.02


class Rates(Callback):
    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append([group["lr"] for group in optimizer.param_groups])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.on_before_optimizer_step(trainer, pl_module, trainer.optimizers[0])


def train(schedule: Any, interval: Any = None, **options: Any) -> tuple[list[list[float]], Any]:
    rates = Rates()
    callbacks = [rates, *options.pop("callbacks", [])]
    run = trainer(limit_val_batches=0, callbacks=callbacks, **options)
    model = linear(optimizer=partial(SGD, lr=RATE), lr_scheduler=schedule, lr_scheduler_interval=interval)
    run.fit(model, datamodule=Memory(batch_size=7))
    return rates.seen, run


def cosine(steps: int, warmup: int) -> list[float]:
    """By the formula of the tutorials, after a warmup in equal steps, down to a hundredth."""
    falling = steps - warmup
    return [(step + 1) / warmup for step in range(warmup)] + [
        0.99 * (1 + math.cos(step * math.pi / falling)) / 2 + 0.01 for step in range(falling + 1)
    ]


class Falling(LRScheduler):
    interval, total_steps = "step", 1

    def set_length(self, total_steps: int, steps_per_epoch: float) -> None:
        assert total_steps % steps_per_epoch == 0
        self.total_steps = total_steps

    def get_lr(self) -> list[Any]:
        return [rate * (1 - self.last_epoch / self.total_steps) for rate in self.base_lrs]


CHANGING = [GradientAccumulationScheduler({0: 1, 1: 2})]
NO_WARMUP = partial(CosineWithWarmup, warmup_epochs=0)
SHORT = partial(CosineWithWarmup, warmup_epochs=0.4)
HALVING = partial(StepLR, step_size=1, gamma=0.5)


@pytest.mark.parametrize(
    ("schedule", "interval", "options", "factors"),
    [
        # 32 images in batches of 7 are 5 batches, and with accumulation 3 steps, in an epoch
        (
            partial(CosineWithWarmup, warmup_epochs=1.5),
            None,
            {"max_epochs": 4, "accumulate_grad_batches": 2},
            cosine(12, 4),
        ),
        (CosineWithWarmup, None, {"max_epochs": 3}, cosine(15, 5)),
        (CosineWithWarmup, None, {"max_epochs": 3, "max_steps": 8}, cosine(8, 4)),
        (SHORT, None, {"max_epochs": -1, "max_steps": 8}, cosine(8, 2)),
        (NO_WARMUP, None, {"max_epochs": 3, "limit_train_batches": 4, "accumulate_grad_batches": 4}, cosine(3, 0)),
        (SHORT, None, {"max_epochs": 3, "limit_train_batches": 0.5}, cosine(6, 1)),
        (NO_WARMUP, "epoch", {"max_epochs": 2, "callbacks": CHANGING}, [1] * 5 + [0.505] * 3 + [0.01]),
        (HALVING, None, {"max_epochs": 2}, [1] * 5 + [0.5] * 5 + [0.25]),
        (HALVING, "step", {"max_epochs": 2}, [0.5**step for step in range(11)]),
        (Falling, None, {"max_epochs": 2}, [1 - step / 10 for step in range(11)]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_schedule_lasts_as_long_as_training_and_is_stepped_after_each_epoch_or_step(
    schedule, interval, options, factors
):
    seen, _ = train(schedule, interval, **options)
    for of_group in zip(*seen, strict=True):
        assert of_group == pytest.approx([RATE * factor for factor in factors])


@pytest.mark.filterwarnings("ignore:.*Are you sure you didn't mean:RuntimeWarning")
@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("options", [{"max_epochs": 2}, {"max_epochs": 3, "accumulate_grad_batches": 2}], ids=str)
def test_one_cycle_without_a_length_is_as_long_as_training_and_keeps_one_of_its_own(interval, options):
    for make, own in ((OneCycleLR, None), (partial(OneCycleLR, total_steps=77), 77)):
        _, run = train(partial(make, max_lr=0.1), interval, **options)
        (config,) = run.lr_scheduler_configs
        assert config.scheduler.total_steps == own or (run.global_step if interval == "step" else run.current_epoch)


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
