"""Learning-rate schedules."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from lightning.pytorch.cli import LRSchedulerCallable
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from project.engine.errors import UserError
from project.engine.training.steps import PlannedSteps

_LENGTHS = ("total_steps", "epochs", "steps_per_epoch")


def cosine_with_warmup(step: int, *, total_steps: int, warmup_steps: int = 0, lrf: float = 0.0) -> float:
    """A linear warmup, then half a cosine from the base rate down to a fraction of it.

    The cosine is that of Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983.

    Args:
        step: The number of an optimizer step, from 0.
        total_steps: Optimizer steps in the whole run.
        warmup_steps: Optimizer steps of the warmup; the first is taken at ``1 / warmup_steps`` of the base rate.
        lrf: The final learning rate as a fraction of the base rate.

    Returns:
        The fraction of the base rate at which the step is taken.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return lrf + (1 - lrf) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


def build_cosine(optimizer: Optimizer, planned: PlannedSteps, lrf: float, warmup_epochs: float) -> LambdaLR:
    """Builds the schedule of :func:`cosine_with_warmup` over all of training, to be stepped after each optimizer step.

    Args:
        optimizer: What it is for.
        planned: The steps of training.
        lrf: The final learning rate as a fraction of the optimizer's.
        warmup_epochs: How many epochs the warmup takes; at most half of the training.

    Raises:
        UserError: Training has no end.
    """
    total = planned.total()
    warmup_steps = round(min(planned.in_epochs(warmup_epochs), total // 2))
    return LambdaLR(optimizer, partial(cosine_with_warmup, total_steps=total, warmup_steps=warmup_steps, lrf=lrf))


def of_length(make: LRSchedulerCallable, length: Callable[[], int]) -> LRSchedulerCallable:
    """Lets ``OneCycleLR`` last as long as training where nothing else is said.

    Args:
        make: Makes a schedule from the optimizer.
        length: How often it will be stepped; called only where the schedule must know.

    Returns:
        The same, with ``total_steps`` where it is a :func:`functools.partial` of ``OneCycleLR`` without any length.
    """
    parts = (make.func, *make.args) if isinstance(make, partial) else ()
    is_one_cycle = any(isinstance(part, type) and issubclass(part, OneCycleLR) for part in parts)
    if not is_one_cycle or any(cast(Any, make).keywords.get(name) is not None for name in _LENGTHS):
        return make
    return partial(cast(Any, make), total_steps=length())


def require_long_enough(scheduler: Any, length: Callable[[], int]) -> None:
    """Finds out before training what torch would say after the last step of a schedule that has an end.

    Args:
        scheduler: Any; ``OneCycleLR`` alone has one.
        length: How often it will be stepped.

    Raises:
        UserError: It ends before training does.
    """
    if isinstance(scheduler, OneCycleLR) and scheduler.total_steps < (needed := length()):
        raise UserError(
            f"OneCycleLR ends after {scheduler.total_steps} of {needed} steps; leave its length out, or set total_steps to"
            f" {needed}"
        )
