"""Progress without a terminal: lines in place of a bar."""

import math
import time
from datetime import timedelta

from lightkeeper.exact import note
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

_INTERVAL = 60.0
"""Seconds between two lines."""


class ProgressLines(ProgressBar):
    """Writes a line to standard error for each epoch, and every minute within longer ones.

    It has the metrics of a progress bar: those that are logged with ``prog_bar=True``.
    """

    is_enabled = True  # ``LightningModule.print`` asks for it

    def __init__(self) -> None:
        super().__init__()
        self._written = time.monotonic()

    def disable(self) -> None:
        """Stops writing; Lightning calls it in all processes but the first."""
        self.is_enabled = False

    def enable(self) -> None:
        """Writes again; Lightning calls it after a search for a learning rate or batch size."""
        self.is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._started = time.monotonic()
        self._first_step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Writes a line every minute."""
        if self._is_due():
            self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the newest metrics and the remaining time."""
        epochs = "" if trainer.max_epochs == -1 else f" of {trainer.max_epochs}"
        line = [f"epoch {trainer.current_epoch + 1}{epochs}", f"step {trainer.global_step:,}"]
        line += [f"{name} {value:.4f}" for name, value in trainer.progress_bar_metrics.items()]
        steps = trainer.global_step - self._first_step
        total = trainer.estimated_stepping_batches - self._first_step
        if 0 < steps <= total < math.inf:
            seconds = (time.monotonic() - self._started) / steps * (total - steps)
            line.append(f"{timedelta(seconds=round(seconds))} left")
        self._write(", ".join(line))

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes a line every minute of an evaluation."""
        split = "test" if trainer.testing else "validation"
        batches = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
        if self._is_due():
            self._write(f"{split}: batch {batch_idx + 1:,} of {sum(batches):,}")

    on_validation_batch_end = on_test_batch_end

    def _is_due(self) -> bool:
        return time.monotonic() - self._written >= _INTERVAL

    def _write(self, text: str) -> None:
        self._written = time.monotonic()
        if self.is_enabled:
            note(text)
