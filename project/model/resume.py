"""What a resumed run may change of its optimizer and schedule."""

import copy
from typing import Any, TypedDict

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import SWALR

from project.engine.errors import UserError
from project.model.optimizers import LR_SCALE


class Settings(TypedDict):
    """What a command asked of optimizer and schedule, as plain data.

    Attributes:
        optimizer: The optimizer's class.
        parameters: How many parameters each group has.
        groups: Each group's settings.
        rates: The learning rate of each group that the schedule starts from: the optimizer's or, as in ``OneCycleLR``, its own.
        scheduled: What the schedule has added to each group, such as the ``max_lr`` of ``OneCycleLR``.
        scheduler: The state of the schedule before its first step.
    """

    optimizer: str
    parameters: list[int]
    groups: list[dict[str, Any]]
    rates: list[float]
    scheduled: list[dict[str, Any]]
    scheduler: dict[str, Any]


def group_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Lists each parameter group's settings; asked for before a schedule changes them."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def settings_of(optimizer: Optimizer, groups: list[dict[str, Any]], scheduler: Any) -> Settings:
    """Collects what a command asks for.

    Args:
        optimizer: Before its first step.
        groups: What :func:`group_settings` found.
        scheduler: Before its first step; any that torch has.
    """
    planned = group_settings(optimizer)
    return Settings(
        optimizer=type(optimizer).__name__,
        parameters=[len(group["params"]) for group in optimizer.param_groups],
        groups=groups,
        rates=[float(after.get("initial_lr", before["lr"])) for before, after in zip(groups, planned, strict=True)],
        scheduled=[
            {name: value for name, value in after.items() if name not in before}
            for before, after in zip(groups, planned, strict=True)
        ],
        scheduler=copy.deepcopy(scheduler.state_dict()),
    )


def optimizer_summary(settings: Settings | None) -> dict[str, Any]:
    """The optimizer's class and the numbers it was given, for people to read; several rates as a list.

    Args:
        settings: What a command asked for; None before there is an optimizer.
    """
    if settings is None:
        return {}
    groups = settings["groups"]  # the first is the one with weight decay, of the head
    first = {name: value for group in reversed(groups) for name, value in group.items() if name not in _HOW}
    numbers = {name: float(value) if isinstance(value, Tensor) else value for name, value in first.items()}
    rates = list(dict.fromkeys(float(group["lr"]) for group in groups if group.get(LR_SCALE, 1.0) == 1.0))
    return {"name": settings["optimizer"], **numbers} | ({"lr": rates} if len(rates) > 1 else {})


def require_same_optimizer(before: Settings, now: Settings) -> None:
    """Compares the optimizer of a checkpoint with the one that is to continue.

    Args:
        before: What was asked for when the checkpoint was made.
        now: What is asked for now.

    Raises:
        UserError: The optimizer is another one, or has other parameters.
    """
    if (before["optimizer"], before["parameters"]) == (now["optimizer"], now["parameters"]):
        return
    trained = f"{before['optimizer']} on {sum(before['parameters'])} parameters"
    asked = f"{now['optimizer']} on {sum(now['parameters'])}"
    raise UserError(
        f"this run was trained by {trained} and cannot resume with {asked}; keep --model.optimizer and"
        " --model.freeze_backbone, freeze_until and layer_decay as they were, or use another --name"
    )


def require_changeable_rates(before: Settings, now: Settings) -> None:
    """Refuses another learning rate where the old one was 0, which no factor changes.

    Args:
        before: What was asked for when the checkpoint was made.
        now: What is asked for now, of the same groups.

    Raises:
        UserError: A rate was 0, and no longer is.
    """
    for old, new in zip(before["rates"], now["rates"], strict=True):
        if old == 0 != new:
            raise UserError(
                f"this run was trained at a learning rate of 0 and cannot resume at {new:g}; keep --model.optimizer.lr, or"
                " use another --name"
            )


def restart_epoch(trainer: Trainer, model: LightningModule) -> None:
    """Prepares callbacks for the epoch within which a run is resumed, as Lightning does at the start of an epoch alone.

    What they change of weights and optimizer at the start of an epoch was done before the checkpoint was made, and was
    restored with it.
    """
    if not trainer.fit_loop.restarted_mid_epoch:
        return
    (optimizer,) = trainer.optimizers
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    groups = group_settings(optimizer)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    for callback in callbacks:
        if isinstance(callback, GradientAccumulationScheduler | StochasticWeightAveraging):
            callback.on_train_epoch_start(trainer, model)
    model.load_state_dict(weights)
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update(settings)


def apply_changes(trainer: Trainer, before: Settings, now: Settings) -> None:
    """Changes what a resumed checkpoint restored where the command now asks for something else than it did before.

    What the command did not change stays as it was restored, so the same command continues exactly.

    Args:
        trainer: With the restored optimizer and schedule; any that torch has.
        before: What was asked for when the checkpoint was made.
        now: What is asked for now.
    """
    (optimizer,) = trainer.optimizers
    for name in ("groups", "scheduled"):
        for group, old, new in zip(optimizer.param_groups, before[name], now[name], strict=True):
            group.update({key: value for key, value in new.items() if key != "lr" and value != old.get(key)})
    for group, rate, wanted in zip(optimizer.param_groups, before["rates"], now["rates"], strict=True):
        if wanted != rate:  # wherever the schedule is, it has multiplied the rate that it started from
            group["lr"] *= wanted / rate
    for config in trainer.lr_scheduler_configs:
        if isinstance(config.scheduler, SWALR):  # StochasticWeightAveraging's, in place of the command's
            continue
        for name, value in now["scheduler"].items():
            if name not in _PROGRESS and value != before["scheduler"].get(name):
                setattr(config.scheduler, name, value)


# how an optimizer computes, not what; the head's share of the learning rate is all of it
_HOW = ("maximize", "foreach", "capturable", "differentiable", "fused", "lr_scale")
_PROGRESS = ("last_epoch", "_step_count", "_last_lr")  # of a scheduler, not its settings
