"""What can be found wrong before a run has a folder: options first, then data as listed, then what must be built."""

import math
from typing import Any, NamedTuple

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping

from project.data import ImageDataModule
from project.model import ImageClassifier

from ..errors import UserError, require
from ..run.loggers import class_of
from ..training.best_checkpoint import Monitor
from ..training.unsupported import AVERAGES, require_one_average

_AT_LEAST_1 = ("accumulate_grad_batches", "check_val_every_n_epoch")
_LENGTHS = ("T_0", "T_max", "step_size", "step_size_down", "step_size_up", "total_iters", "total_steps")
_OF_TRAINING = {"train/loss": "min", "train/accuracy": "max", "train/images_per_second": None}
_LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches")


def require_sound_options(config: Namespace) -> None:
    """Refuses options of the trainer that Lightning takes and then fails on, or that leave no run.

    Args:
        config: The whole command's.

    Raises:
        UserError: One of them does not work.
    """
    trainer = config.trainer
    if trainer.barebones:
        raise UserError(
            "--trainer.barebones: such a training neither logs nor saves, so that no run is left;"
            " python -m benchmarks measures speed"
        )
    for name in _AT_LEAST_1:
        require(trainer[name] is None or trainer[name] >= 1, f"--trainer.{name}", trainer[name], "at least 1")
    require(trainer.val_check_interval != 0, "--trainer.val_check_interval", trainer.val_check_interval, "above 0")
    every = trainer.log_every_n_steps
    require(every is None or every >= 0, "--trainer.log_every_n_steps", every, "0 or more")
    clip = trainer.gradient_clip_val
    require(clip is None or clip >= 0, "--trainer.gradient_clip_val", clip, "0 or more")
    if trainer.gradient_clip_algorithm is not None and clip is None:
        raise UserError("--trainer.gradient_clip_algorithm clips nothing without --trainer.gradient_clip_val")
    for name in _LIMITS:
        if trainer[name] == 0:
            what = "train on" if "train" in name else "measure"
            raise UserError(f"--trainer.{name} must leave something to {what}, got 0")
    given = trainer.callbacks or []
    require_one_average([_averaging(spec) for spec in given if issubclass(class_of(spec) or object, AVERAGES)])
    schedule = config.model.init_args.get("lr_scheduler")
    for name, length in (schedule.get("init_args") or {}).items() if isinstance(schedule, Namespace) else ():
        if name in _LENGTHS and isinstance(length, int | float):  # torch divides by them, after the first epoch or step
            require(length >= 1, f"--model.lr_scheduler.{name}", length, "at least 1")


def _averaging(spec: Namespace) -> str:
    name, options = spec.class_path.rsplit(".", 1)[-1], spec.get("init_args") or {}
    return f"{name} (decay {options['decay']})" if "decay" in options else name


def require_sound_run(trainer: Trainer, model: ImageClassifier, data: ImageDataModule, monitor: Monitor) -> None:
    """Checks what can be known before an image is drawn, downloaded or read.

    Args:
        trainer: The trainer, before it trains.
        model: What it is to train.
        data: What it is to train on.
        monitor: What the best checkpoint is chosen by, in a mode that may be the user's own.

    Raises:
        UserError: Data, limits, metrics that callbacks and schedule watch, the optimizer or its schedule do not go together.
    """
    data.require_usable(trainer.world_size)
    in_epoch: int | None = None  # not known of all data
    overfits: bool = trainer.overfit_batches > 0  # type: ignore[attr-defined]  # set by a connector
    for split, size in data.split_sizes().items():
        batch_size = max(1, data.batch_size // trainer.world_size)
        share = size / trainer.world_size
        batches = int(share // batch_size) if split == "train" else math.ceil(share / batch_size)
        option = "overfit_batches" if overfits and split != "test" else f"limit_{split}_batches"
        limit = getattr(trainer, option)
        _require_a_batch(option, limit, batches)
        if split == "train":
            in_epoch = min(limit, batches) if isinstance(limit, int) else int(limit * batches)
            _require_validation(trainer, in_epoch)
    watches = _watches_of_callbacks(trainer, in_epoch)
    _require_own_modes(watches, model, monitor)


def _require_validation(trainer: Trainer, batches: int) -> None:
    interval: int | float = trainer.val_check_interval
    every: int | None = trainer.check_val_every_n_epoch
    if math.isinf(interval) and trainer.world_size > 1:
        raise UserError(
            "--trainer.val_check_interval: each process would validate by a clock of its own; with several devices, give"
            " a number of batches"
        )
    if isinstance(interval, int) and interval > batches and every is not None:
        raise UserError(
            f"--trainer.val_check_interval must be at most {batches}, the training batches of an epoch, got {interval};"
            " --trainer.check_val_every_n_epoch null counts across epochs"
        )


def _require_a_batch(option: str, limit: int | float, batches: int) -> None:
    if isinstance(limit, float) and int(limit * batches) < 1 <= batches:
        raise UserError(
            f"--trainer.{option} {limit} of {batches} batches is less than one; give at least"
            f" {1 / batches:.2g}, or how many batches as a whole number"
        )


class _Watch(NamedTuple):
    """A metric that a callback or the schedule watches.

    Attributes:
        option: Where it was asked for.
        who: The class that watches.
        metric: What it watches.
        mode: Whether it takes the least or the greatest for the best; None or something else if it does not say.
        look: The optimizer step after which it looks first; None if it waits for the metric, or this is not known.
    """

    option: str
    who: str
    metric: str
    mode: str | None
    look: int | None


def _watches_of_callbacks(trainer: Trainer, batches: int | None) -> list[_Watch]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    found = []
    for callback in callbacks:
        metric = getattr(callback, "monitor", None)
        if metric is not None:
            early = isinstance(callback, EarlyStopping) and metric in _OF_TRAINING
            look = _steps_before_validation(trainer, batches) if early and batches is not None else None
            mode = getattr(callback, "mode", None)
            found.append(_Watch("--trainer.callbacks", type(callback).__name__, metric, mode, look))
    return found


def _require_own_modes(watches: list[_Watch], model: ImageClassifier, monitor: Monitor) -> None:
    """Finds who would take the worst for the best: both torch and Lightning take the least where nothing is said."""
    best = _OF_TRAINING | model.monitors() | {monitor.monitor: monitor.mode}
    for option, who, metric, mode, _ in watches:
        own = best.get(metric)
        if mode in ("min", "max") and own not in (None, mode):
            better = "less" if own == "min" else "more"
            raise UserError(
                f"{option}: {who} has mode {mode}, but of '{metric}' {better} is better; add {option}.mode {own}"
            )


def _steps_before_validation(trainer: Trainer, batches: int) -> int:
    """The optimizer steps before the first validation."""
    interval: int | float = trainer.val_check_interval
    every: int = trainer.check_val_every_n_epoch or 1
    first = interval if isinstance(interval, int) else int(batches * min(interval, 1.0))
    return math.ceil((batches * (every - 1) + first) / trainer.accumulate_grad_batches)
