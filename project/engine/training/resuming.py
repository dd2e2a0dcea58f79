"""Checks of a resumed run's optimizer and schedule against those in its checkpoint, and what its first epoch needs."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from torch import Tensor
from torch.optim import Optimizer

from ..errors import UserError, printable
from ..run.settings import is_plain

LENGTHS = ("total_steps", "warmup_steps", "_schedule_phases")
"""What a schedule knows of the length of training: a resumed run may be longer."""

_HOW = ("params", "initial_lr", "foreach", "fused", "capturable", "differentiable", "maximize")
"""Settings of an optimizer that say how it computes, not what, or that are said elsewhere."""


def training_settings(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """Returns the names and settings of ``optimizer`` and ``lr_scheduler`` before the first step, as plain data.

    A setting that differs between parameter groups is a list; groups without weight decay do not count.
    """
    found: dict[str, dict[str, Any]] = {"optimizer": {}, "lr_scheduler": {}}
    for optimizer in trainer.optimizers[:1]:
        groups = optimizer.param_groups
        decayed = [group for group in groups if group.get("weight_decay")] or groups
        started = [{**group, "lr": group.get("initial_lr", group["lr"])} for group in decayed]
        values = {name: _distinct([group.get(name) for group in started]) for name in started[0] if name not in _HOW}
        found["optimizer"] = {"name": type(optimizer).__name__, **_plain(values)}
    for config in trainer.lr_scheduler_configs[:1]:
        kind, attributes = type(config.scheduler), vars(config.scheduler)
        names = [name for name in signature(kind).parameters if name in attributes and name not in LENGTHS]
        values = _plain({name: attributes[name] for name in names})
        found["lr_scheduler"] = {"name": kind.__name__, "interval": config.interval, **values}
    return found


def require_same_settings(before: Mapping[str, Any], now: dict[str, dict[str, Any]], source: object) -> None:
    """Compares the settings in a checkpoint with those of the run that is to resume; the UserError names the first."""
    for part, settings in now.items():
        for name, value in settings.items():
            if (old := before[part].get(name)) != value:
                option = f"--model.{part}" if name == "name" else f"--model.{part}'s {name}"
                raise UserError(
                    f"this run was trained with {option} {printable(old)}, which cannot change when it resumes, got {value};"
                    f" to change it, start another: --model.weights {source} --name another"
                )


def require_fitting_state(optimizer: Optimizer, state: Mapping[str, Any], source: object) -> None:
    """Refuses an optimizer's state that is of other parameters."""
    groups, saved_groups = optimizer.param_groups, state["param_groups"]
    own, saved = ([len(group["params"]) for group in found] for found in (groups, saved_groups))
    if own != saved:
        raise UserError(
            f"'{source}' does not fit this optimizer: it trained {sum(saved)} parameters, and now there are {sum(own)};"
            " --model.freeze cannot change when a run resumes"
        )
    for group, saved_group in zip(groups, saved_groups, strict=True):
        if not saved_group.get("fused"):
            continue  # torch itself notices other shapes; fused, it writes where the tensor ends
        for parameter, index in zip(group["params"], saved_group["params"], strict=True):
            for name, value in state["state"].get(index, {}).items():
                if name != "step" and value is not None and value.shape != parameter.shape:
                    what = f"{printable(name)} of parameter {index} has the shape {tuple(value.shape)}"
                    raise UserError(f"'{source}' does not fit this optimizer: {what}, not {tuple(parameter.shape)}")


def restart_epoch(trainer: Trainer, model: LightningModule) -> None:
    """Prepares callbacks for the epoch within which a run is resumed, as Lightning does at the start of an epoch alone.

    What they change of weights and optimizer at the start of an epoch was done before the checkpoint was made, and was
    restored with it.
    """
    if not trainer.fit_loop.restarted_mid_epoch:
        return
    (optimizer,) = trainer.optimizers
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    for callback in callbacks:
        if isinstance(callback, GradientAccumulationScheduler | StochasticWeightAveraging):
            callback.on_train_epoch_start(trainer, model)
    model.load_state_dict(weights)
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update(settings)


def _distinct(values: list[Any]) -> Any:
    found = [value for at, value in enumerate(values) if value not in values[:at]]
    return found[0] if len(found) == 1 else found


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps numbers, texts and lists of these, which a checkpoint can hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.tolist()
        if isinstance(value, Mapping):  # as milestones are
            return plain(sorted(value.items()))
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    found = {name: plain(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if is_plain(value)}
