"""Mistakes that Lightning would take without a word, or notice only after hours."""

import math

from jsonargparse import Namespace
from lightning.pytorch import Trainer

from ..errors import UserError
from ..loading.data_module import ReproducibleDataModule
from ..training.best_checkpoint import Monitor


def require_sound_options(trainer: Namespace) -> None:
    """Refuses options of the trainer that leave no run."""
    if trainer.barebones:
        raise UserError("--trainer.barebones neither logs nor saves; python -m benchmarks measures speed")
    for name in ("limit_train_batches", "limit_val_batches", "limit_test_batches"):
        if trainer[name] == 0:
            raise UserError(f"--trainer.{name} must be above 0 or left out, got 0")


def require_sound_run(
    trainer: Trainer, data: ReproducibleDataModule, best: dict[str, str | None], monitor: Monitor
) -> None:
    """Refuses limits that leave no batch, and callbacks that take a metric's worst for its best, before data is read.

    ``best`` has the modes in which metrics are best; ``monitor`` is the best checkpoint's, in a mode that the user chose.
    """
    data.require_usable(trainer.world_size)
    overfits: bool = trainer.overfit_batches > 0  # type: ignore[attr-defined]  # set by a connector
    for split, size in data.split_sizes().items():
        images = max(1, data.batch_size // trainer.world_size)
        share = size / trainer.world_size
        batches = int(share // images) if split == "train" else math.ceil(share / images)
        option = "overfit_batches" if overfits and split != "test" else f"limit_{split}_batches"
        limit = getattr(trainer, option)
        if isinstance(limit, float) and int(limit * batches) < 1 <= batches:
            raise UserError(f"--trainer.{option} {limit} of {batches} batches is less than one; give a whole number")
    modes = {"train/loss": "min", "train/accuracy": "max"} | best | {monitor.monitor: monitor.mode}
    for callback in trainer.callbacks:  # type: ignore[attr-defined]  # set by a connector
        metric, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        wanted = modes.get(str(metric))
        if mode in ("min", "max") and wanted not in (None, mode):
            name = type(callback).__name__
            raise UserError(f"{name} has mode {mode}, but {wanted} of '{metric}' is best; give it mode {wanted}")
