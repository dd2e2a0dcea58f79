"""Curves of learning rate and speed, and how long training will take."""

import math
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from lightkeeper.exact import is_logged, note
from lightkeeper.images import ImageDataModule
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

_ESTIMATE_STEPS = 10
"""Steps after the first that are timed to estimate the length of training."""


class ImagesPerSecond(Callback):
    """Logs ``train/images_per_second`` of all devices, loading included, validation left out.

    Says once, after the first steps, how long training will take.
    """

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Prints the settings that decide the speed, once Lightning has chosen them."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        if stage != "fit" or not (trainer.is_global_zero and isinstance(data, ImageDataModule)):
            return
        layout = pl_module.memory_format
        compiled = "compiled" if pl_module.compile_network else "not compiled"
        note(
            f"{trainer.precision}, {layout}, {compiled}, threads: {torch.get_num_threads()},"
            f" loader workers: {data.workers()}"
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clocks; no epoch starts if a run resumes within one."""
        self._first_step = trainer.global_step + 1
        self._estimate_from: float | None = None
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restarts the clock and the count of batches."""
        self._since = time.perf_counter()
        self._batches = 0

    on_validation_end = on_train_epoch_start  # so that validation does not count

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Logs the speed since it was last logged."""
        self._batches += 1
        self._estimate(trainer)
        if is_logged(trainer):
            images = self._batches * _images_in(batch) * trainer.world_size
            pl_module.log("train/images_per_second", images / (time.perf_counter() - self._since))
            self.on_train_epoch_start(trainer, pl_module)

    def _estimate(self, trainer: Trainer) -> None:
        """Notes the length of training once, timed from the end of the first step.

        That one may compile or fill caches.
        """
        steps = trainer.global_step - self._first_step
        if steps == 0 and self._estimate_from is None:
            self._estimate_from = time.perf_counter()
        if steps < _ESTIMATE_STEPS or self._estimate_from is None:
            return
        remaining = trainer.estimated_stepping_batches - trainer.global_step
        if trainer.is_global_zero and 0 < remaining < math.inf:
            seconds = (time.perf_counter() - self._estimate_from) / steps * remaining
            duration = timedelta(seconds=math.ceil(seconds))
            note(f"training will take about {duration} (h:mm:ss), validation not counted")
        self._estimate_from = None


def _images_in(batch: Any) -> int:
    """Returns the number of images in a batch, or in that of the first of several loaders."""
    while isinstance(batch, list | tuple | dict):
        parts = batch.values() if isinstance(batch, dict) else batch
        first = next(part for part in parts if part is not None)  # as of a loader that has ended
        if isinstance(first, str) or getattr(first, "ndim", 0) == 3:  # one by one
            break
        batch = first
    return len(batch)


class LearningRate(Callback):
    """Logs ``learning_rate``, the first parameter group's.

    With ``--model.layer_decay``, that is the head's, and the others are fixed shares of it.
    Lightning's monitor draws a curve for each group, and refuses a run without a logger.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads the rate, for modules that step by hand and whose first batch may take no step."""
        self._rate = _first_rate(trainer.optimizers)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Keeps the learning rate of this step, before the schedule changes it."""
        self._rate = _first_rate([optimizer])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Logs the learning rate."""
        if self._rate is not None and is_logged(trainer):
            pl_module.log("learning_rate", self._rate)


def _first_rate(optimizers: Sequence[Optimizer]) -> float | None:
    """Returns the rate of the first group; None of a module without optimizers."""
    rates = (float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups)
    return next(rates, None)  # Lightning stands in for none with one without groups
