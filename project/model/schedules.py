"""Learning-rate schedules: the default, and the length of training for any that asks for it."""

import math
import warnings
from contextlib import suppress
from functools import partial
from traceback import walk_tb
from typing import Any, Literal, cast

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat
from lightkeeper.exact import UserError
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.utilities.types import LRSchedulerConfigType
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

Interval = Literal["epoch", "step"]

_DRY_RUN_STEPS = 10_000  # at most, which take a tenth of a second


class CosineWithWarmup(LRScheduler):
    """Linear warmup, then half a cosine down to a fraction of the learning rate.

    The cosine is that of Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983.

    Args:
        optimizer: The optimizer.
        lrf: The last learning rate as a fraction of the first.
        warmup_epochs: The length of the warmup in epochs, such as 0.5; at most half of the
            training.
    """

    interval: Interval = "step"

    def __init__(
        self,
        optimizer: Optimizer,
        lrf: ClosedUnitInterval = 0.01,
        warmup_epochs: NonNegativeFloat = 1.0,
    ) -> None:
        self.lrf = float(lrf)
        self.warmup_epochs = float(warmup_epochs)
        self.total_steps = 1
        self.warmup_steps = 0
        super().__init__(optimizer)

    def set_length(self, total_steps: int, steps_per_epoch: float) -> None:
        """Stretches the schedule over the whole training; called before the first step.

        If a run resumes with another ``max_epochs`` or ``max_steps``, these values replace the
        saved ones.
        """
        self.total_steps = total_steps
        self.warmup_steps = round(min(self.warmup_epochs * steps_per_epoch, total_steps // 2))
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate

    def factor(self, step: int) -> float:
        """Returns the learning rate at a step, counted from 0, as a fraction of the initial one."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(self.total_steps - self.warmup_steps, 1)
        return self.lrf + (1 - self.lrf) * self.annealed(min(progress, 1.0))

    def annealed(self, progress: float) -> float:
        """Maps progress from 0 to 1 to half a cosine, which falls from 1 to 0."""
        return (1 + math.cos(math.pi * progress)) / 2

    def get_lr(self) -> list[float | Tensor]:
        """Returns the learning rate of each parameter group at the current step."""
        # as torch's cosine, also of a group that was added in training, as to unfreeze a backbone
        return [
            group.setdefault("initial_lr", group["lr"]) * self.factor(self.last_epoch)
            for group in self.optimizer.param_groups
        ]


def build_schedule(
    make: LRSchedulerCallable, optimizer: Optimizer, trainer: Trainer, interval: Interval | None
) -> LRSchedulerConfigType:
    """Builds a schedule for ``configure_optimizers``, and sets its length.

    A class of your own may have what ``CosineWithWarmup`` has: ``interval``, the default of
    ``--model.lr_scheduler_interval``, and ``set_length``. ``OneCycleLR`` gets the length of
    training unless it is given one.
    """
    initial_rates = [float(group["lr"]) for group in optimizer.param_groups]
    if _is_one_cycle_without_length(make):
        make = partial(cast(Any, make), total_steps=_length(trainer, interval or "epoch")[0])
    _dry_run(make, optimizer, trainer, interval)
    scheduler, interval = _with_length(make, optimizer, trainer, interval)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    keeps_proportions = all(
        math.isclose(rate * initial_rates[0], rates[0] * initial)
        for rate, initial in zip(rates, initial_rates, strict=True)
        if rate
    )
    if not keeps_proportions:
        raise UserError(
            "--model.lr_scheduler: this schedule gives all layers the same learning rate, but"
            " --model.layer_decay or the optimizer gives them several; use one that scales the"
            " optimizer's rates, such as CosineWithWarmup"
        )
    config: LRSchedulerConfigType = {
        "scheduler": scheduler,
        "interval": interval,
        "name": "learning_rate",
    }
    if isinstance(scheduler, ReduceLROnPlateau):
        monitor = getattr(scheduler, "monitor", "val/loss")  # Lightning's subclass has one
        config["monitor"] = monitor
        if monitor.startswith("val/") and interval == "epoch":
            # between validations, Lightning would step it on the last one's value
            config["frequency"] = trainer.check_val_every_n_epoch or 1
    return config


def _with_length(
    make: LRSchedulerCallable, optimizer: Optimizer, trainer: Trainer, interval: Interval | None
) -> tuple[Any, Interval]:
    """Returns a schedule with its length, and its interval."""
    scheduler: Any = make(optimizer)
    interval = cast(Interval, interval or getattr(scheduler, "interval", "epoch"))
    if hasattr(scheduler, "set_length"):
        # what set_length changes is not restored where options that decide the length have changed
        before = dict(vars(scheduler))
        scheduler.set_length(*_length(trainer, interval))
        scheduler.lengths = [
            name for name, value in vars(scheduler).items() if value is not before.get(name)
        ]
    return scheduler, interval


def _dry_run(
    make: LRSchedulerCallable, optimizer: Optimizer, trainer: Trainer, interval: Interval | None
) -> None:
    """Steps a schedule as often as training will, then restores the optimizer's options.

    Raises:
        UserError: It cannot be stepped, or has a learning rate that no optimizer can use.
    """
    groups = [
        {name: part.clone() if isinstance(part, Tensor) else part for name, part in group.items()}
        for group in optimizer.param_groups
    ]
    scheduler, interval = _with_length(make, optimizer, trainer, interval)
    name = type(scheduler).__name__
    steps = 2
    with suppress(UserError):  # nothing says where training ends
        steps = min(_length(trainer, interval)[0], _DRY_RUN_STEPS)
    metric = [0.0] if isinstance(scheduler, ReduceLROnPlateau) else []  # it does not improve
    with warnings.catch_warnings(action="ignore"):  # the optimizer takes no step before
        for step in range(1, steps + 1):
            for rate in (float(group["lr"]) for group in optimizer.param_groups):
                if not 0 <= rate < math.inf:
                    raise UserError(
                        f"--model.lr_scheduler: {name} has a learning rate of {rate} in {interval}"
                        f" {step}; it must be 0 or above, and finite"
                    )
            try:
                scheduler.step(*metric)
            except (ArithmeticError, ValueError) as error:
                modules = [frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__)]
                if not all(module.startswith("torch.") for module in modules[1:]):  # but yours
                    raise
                raise UserError(
                    f"--model.lr_scheduler: {name} fails at the end of {interval} {step}: {error}"
                ) from error
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.clear()
        group.update(before)


def total_steps(trainer: Trainer) -> int:
    """Counts the optimizer steps of the whole training."""
    callbacks: list[object] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    if any(isinstance(callback, GradientAccumulationScheduler) for callback in callbacks):
        raise UserError(  # Lightning counts as if all epochs accumulated like the first
            "GradientAccumulationScheduler changes how many steps an epoch has, which a schedule by"
            " steps must know; add --model.lr_scheduler_interval epoch"
        )
    steps = trainer.estimated_stepping_batches
    if not math.isfinite(steps):
        raise UserError(
            "a schedule that lasts as long as training must know where training ends;"
            " set --trainer.max_epochs or --trainer.max_steps, or choose another --model.lr_scheduler"
        )
    return int(steps)


def _length(trainer: Trainer, interval: Interval) -> tuple[int, float]:
    """Counts how often a schedule is stepped in the whole training, and in each epoch."""
    if interval == "epoch" and trainer.max_steps == -1 and (trainer.max_epochs or 0) > 0:
        return cast(int, trainer.max_epochs), 1
    trainer.fit_loop.setup_data()  # with max_steps alone, Lightning has not counted batches yet
    total = total_steps(trainer)
    steps_per_epoch = trainer.num_training_batches / trainer.accumulate_grad_batches
    if math.isfinite(steps_per_epoch):
        steps_per_epoch = math.ceil(steps_per_epoch)
    if interval == "step":
        return total, steps_per_epoch
    return math.ceil(total / steps_per_epoch), 1


def _is_one_cycle_without_length(make: LRSchedulerCallable) -> bool:
    builder = make if isinstance(make, partial) else partial(make)
    # the command line passes the class as an argument
    is_one_cycle = any(
        isinstance(part, type) and issubclass(part, OneCycleLR)
        for part in (builder.func, *builder.args)
    )
    return is_one_cycle and not any(
        builder.keywords.get(name) for name in ("total_steps", "epochs", "steps_per_epoch")
    )
