"""What can be found wrong before a run has a folder: options first, then data as listed, then what must be built."""

import math
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping

from project.callbacks.log_interval import log_interval
from project.callbacks.monitor import only_ours
from project.data import ImageDataModule
from project.errors import UserError, require
from project.model import ImageClassifier
from project.model.unsupported import AVERAGES, require_one_average
from project.run.placing import class_of

_AT_LEAST_1 = ("accumulate_grad_batches", "check_val_every_n_epoch")
_LENGTHS = ("T_0", "T_max", "step_size", "step_size_down", "step_size_up", "total_iters", "total_steps")
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
            " python -m project.benchmark measures speed"
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
    endless = trainer.max_epochs == -1 or (trainer.max_epochs is None and trainer.max_time is not None)
    if config.model.init_args.get("lr_scheduler") is None and endless and trainer.max_steps == -1:
        raise UserError(
            "the cosine schedule must know where training ends; set --trainer.max_epochs or --trainer.max_steps"
        )


def _averaging(spec: Namespace) -> str:
    name, options = spec.class_path.rsplit(".", 1)[-1], spec.get("init_args") or {}
    return f"{name} (decay {options['decay']})" if "decay" in options else name


def require_sound_run(trainer: Trainer, model: ImageClassifier, data: ImageDataModule) -> None:
    """Checks what can be known before an image is drawn, downloaded or read.

    Args:
        trainer: The trainer, before it trains.
        model: What it is to train.
        data: What it is to train on.

    Raises:
        UserError: Data, limits, metrics that callbacks watch, the optimizer or its schedule do not go together.
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
    _require_watchable(trainer, model, in_epoch)
    model.optimization.require_sound(model.network, trainer)


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


def _require_watchable(trainer: Trainer, model: ImageClassifier, batches: int | None) -> None:
    """Finds a metric that does not exist, or not yet, now, where Lightning would at the end of the first epoch.

    A callback or model of the user's own may log what it likes, so that nothing is known where there is one.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    if not only_ours(model, *callbacks):
        return
    of_training = ["train/loss", "train/accuracy", "train/images_per_second"]
    known = [*model.monitors(), *of_training]
    steps = None if batches is None else _steps_before_validation(trainer, batches)
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
    if batches is not None:
        every = log_interval(every, batches, trainer.accumulate_grad_batches)
    for callback in callbacks:
        watched = getattr(callback, "monitor", None)
        if watched is not None and watched not in known and not watched.startswith("learning_rate"):
            raise UserError(
                f"--trainer.callbacks: {type(callback).__name__} watches '{watched}', which is not logged; there are"
                f" {', '.join(known)}"
            )
        early = isinstance(callback, EarlyStopping) and watched in of_training
        if early and steps is not None and not 0 < every <= steps:
            raise UserError(
                f"--trainer.callbacks: {type(callback).__name__} watches '{watched}', which is logged after every {every}"
                f" steps, but looks for it after {steps} already; set --trainer.log_every_n_steps to {steps} or less"
            )


def _steps_before_validation(trainer: Trainer, batches: int) -> int:
    """The optimizer steps before the first validation."""
    interval: int | float = trainer.val_check_interval
    every: int = trainer.check_val_every_n_epoch or 1
    first = interval if isinstance(interval, int) else int(batches * min(interval, 1.0))
    return math.ceil((batches * (every - 1) + first) / trainer.accumulate_grad_batches)
