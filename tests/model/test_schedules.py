"""Torch's schedules give the rates of their papers' formulas, over a run that is stopped within an epoch, too."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.optim.lr_scheduler import OneCycleLR

from project.engine.errors import UserError
from tests.model.test_classifier import Memory, linear, trainer
from tests.small import require_same_end, small, stop_at
from tests.stress import outcome

STEPS, OF_AN_EPOCH = 8, 4
RUN = Path("runs/run")
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning walks torch's pytrees by it

Rates = Callable[[int, list[float]], float]


def one_cycle(step: int, total: int, peak: float) -> float:
    """Smith and Topin, 2018, https://arxiv.org/abs/1708.07120, with torch's defaults and halves of a cosine."""
    first, turn = peak / 25, 0.3 * total - 1
    last, end = first / 1e4, total - 1
    low, part = (first, step / turn) if step <= turn else (last, 1 - (step - turn) / (end - turn))
    return low + (peak - low) * (1 - math.cos(math.pi * part)) / 2


def warm_restarts(step: int, rate: float, least: float, period: int, factor: int) -> float:
    """Loshchilov and Hutter, 2017, equation 5, https://arxiv.org/abs/1608.03983."""
    while step >= period:
        step, period = step - period, period * factor
    return least + (rate - least) * (1 + math.cos(math.pi * step / period)) / 2


def plateau(epoch: int, losses: list[float], rate: float, factor: float) -> float:
    """Falls after each epoch whose loss is not the least by a ten-thousandth."""
    least = math.inf
    for loss in losses[:epoch]:
        rate, least = (rate, loss) if loss < least * (1 - 1e-4) else (rate * factor, least)
    return rate


SCHEDULES: dict[str, tuple[list[str], Rates]] = {
    "OneCycleLR": (
        ["--model.lr_scheduler.max_lr=0.4", "--model.lr_scheduler_interval=step"],
        lambda step, _: one_cycle(step, STEPS, 0.4),
    ),
    "CosineAnnealingWarmRestarts": (
        [
            "--model.lr_scheduler.T_0=2",
            "--model.lr_scheduler.T_mult=2",
            "--model.lr_scheduler.eta_min=0.01",
            "--model.lr_scheduler_interval=step",
        ],
        lambda step, _: warm_restarts(step, 0.1, 0.01, 2, 2),
    ),
    "MultiStepLR": (
        ["--model.lr_scheduler.milestones=[1,3]", "--model.lr_scheduler.gamma=0.3", "--trainer.max_epochs=4"],
        lambda step, _: 0.1 * 0.3 ** sum(step // OF_AN_EPOCH >= epoch for epoch in (1, 3)),
    ),
    "lightning.pytorch.cli.ReduceLROnPlateau": (
        [
            "--model.lr_scheduler.monitor=val/loss",
            "--model.lr_scheduler.patience=0",
            "--model.lr_scheduler.factor=0.5",
            "--model.optimizer.lr=0.5",  # too much, so that the loss rises now and then
            "--trainer.max_epochs=4",
        ],
        lambda step, losses: plateau(step // OF_AN_EPOCH, losses, 0.5, 0.5),
    ),
}


@pytest.mark.parametrize(
    "name",
    ["OneCycleLR", *(pytest.param(name, marks=pytest.mark.slow) for name in list(SCHEDULES)[1:3]), list(SCHEDULES)[3]],
)
def test_the_rates_are_those_of_the_formula_over_a_stop_too(name, workplace):
    options, rate = SCHEDULES[name]
    flags = [f"--model.lr_scheduler={name}", *options, "--trainer.log_every_n_steps=1"]
    small(*flags, "--trainer.default_root_dir=whole")
    found = outcome(Path("whole/run"))
    losses = [loss for _, loss in found["val/loss"]]
    taken = found["learning_rate"]
    assert [value for _, value in taken] == pytest.approx([rate(step, losses) for step, _ in taken])
    assert len({value for _, value in taken}) > 1
    stop_at(6, *flags)
    small(*flags)
    require_same_end(RUN, found)


def steps_taken(make: Any, interval: Any, **options: Any) -> Any:
    """Trains, and returns the schedule and the trainer as they are at the end."""
    run = trainer(**options)
    run.fit(linear(lr_scheduler=make, lr_scheduler_interval=interval), datamodule=Memory())
    (config,) = run.lr_scheduler_configs
    return config.scheduler, run


@pytest.mark.filterwarnings(
    "ignore:.*Are you sure you didn't mean:RuntimeWarning"
)  # Lightning, of one stepped by epochs
@pytest.mark.parametrize(
    ("interval", "options"),
    [
        ("step", {"max_epochs": 2}),
        ("step", {"max_epochs": 2, "accumulate_grad_batches": 2}),
        ("step", {"max_epochs": -1, "max_steps": 3}),
        ("epoch", {"max_epochs": 3}),
    ],
)
def test_one_cycle_without_a_length_is_as_long_as_training(interval, options):
    schedule, run = steps_taken(partial(OneCycleLR, max_lr=0.1), interval, **options)
    assert schedule.total_steps == (run.global_step if interval == "step" else run.current_epoch)


def test_a_length_that_is_given_stays():
    schedule, _ = steps_taken(partial(OneCycleLR, max_lr=0.1, total_steps=77), "step", max_epochs=1)
    assert schedule.total_steps == 77
    own = partial(OneCycleLR, max_lr=0.1, epochs=3, steps_per_epoch=9)
    schedule, _ = steps_taken(own, "step", max_epochs=1)
    assert schedule.total_steps == 27


def test_a_cycle_that_ends_before_training_does_is_refused_before_the_first_step():
    with pytest.raises(UserError, match=r"ends after (\d+) of \d+ steps; leave its length out"):
        steps_taken(partial(OneCycleLR, max_lr=0.1, total_steps=2), "step", max_epochs=3)
    exact, run = steps_taken(partial(OneCycleLR, max_lr=0.1, total_steps=2), "step", max_epochs=-1, max_steps=2)
    assert exact.total_steps == run.global_step


def test_one_cycle_needs_an_end_of_training():
    with pytest.raises(UserError, match="OneCycleLR and ProgressiveResizing must know where training ends"):
        steps_taken(partial(OneCycleLR, max_lr=0.1), "step", max_epochs=-1)
