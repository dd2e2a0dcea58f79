"""How fast training is."""

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class ImagesPerSecond(Callback):
    """Logs ``train/images_per_second``, all devices together, loading included, validation left out."""

    def __init__(self) -> None:
        self._since, self._batches, self._step = 0.0, 0, 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock where a run goes on within an epoch."""
        self._since, self._batches, self._step = time.perf_counter(), 0, trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._since, self._batches = time.perf_counter(), 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the rate since the last time."""
        self._batches += 1
        stepped, self._step = trainer.global_step > self._step, trainer.global_step
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
        if stepped and every and self._step % every == 0:
            now = time.perf_counter()
            images = self._batches * len(batch.images) * trainer.world_size
            pl_module.log("train/images_per_second", images / (now - self._since))
            self._since, self._batches = now, 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the time of validation out."""
        self._since, self._batches = time.perf_counter(), 0
