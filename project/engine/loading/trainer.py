"""Trainer state that data modules need, with single-process defaults."""

from typing import Any, cast

from lightning.pytorch import Trainer


def world(trainer: Trainer | None) -> tuple[int, int]:
    """The number of processes, and the rank of this one."""
    return (trainer.world_size, trainer.global_rank) if trainer is not None else (1, 0)


def devices(trainer: Trainer | None) -> int:
    """The number of devices of this machine that train."""
    return trainer.num_devices if trainer is not None else 1


def overfits(trainer: Trainer | None) -> bool:
    """Returns True if training sees the same few batches in each epoch."""
    return trainer is not None and cast(Any, trainer).overfit_batches > 0  # set by a connector


def split_in_use(trainer: Trainer | None) -> str:
    """The split that is worked on: ``train``, ``val`` or ``test``."""
    if trainer is None or trainer.training:
        return "train"
    return "test" if trainer.testing or trainer.predicting else "val"


def position(trainer: Trainer | None) -> tuple[int, int]:
    """The epoch that training is in, and the number of its batches that are done."""
    if trainer is None:
        return 0, 0
    # not ``current_epoch``, which a resumed run updates later
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return epochs.processed, trainer.fit_loop.epoch_loop.batch_progress.current.ready
