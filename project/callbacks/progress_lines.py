"""Progress without a terminal: lines in place of a bar."""

import math
import time
from collections.abc import Callable
from datetime import timedelta

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from project.engine import note

_INTERVAL = 60.0
"""Seconds between two lines."""

_FORMATS = {
    "train/loss": "loss {:.4f}",
    "train/accuracy": "accuracy {:.2%}",
    "val/loss": "validation loss {:.4f}",
    "val/accuracy": "validation accuracy {:.2%}",
    "train/images_per_second": "{:,.0f} images/s",
}


class ProgressLines(ProgressBar):
    """Writes a line to standard error for each epoch, and every minute within longer ones."""

    is_enabled = True  # ``LightningModule.print`` asks for it

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._validated = False

    def disable(self) -> None:
        """Stops writing; Lightning calls it in all processes but the first."""
        self.is_enabled = False

    def enable(self) -> None:
        """Writes again; Lightning calls it after a search for a learning rate or batch size."""
        self.is_enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._started = self._written = self._clock()
        self._first_step = trainer.global_step

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock, except in a validation within training."""
        if trainer.state.fn != "fit":
            self._started = self._written = self._clock()

    on_validation_start = on_test_start

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the validation of the epoch before."""
        self._validated = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers that this epoch was validated."""
        self._validated = True

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Writes a line every minute, except at the end of an epoch."""
        is_last = trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if self._is_due() and not is_last:
            self._write(self._training_line(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of the epoch, validation included."""
        self._write(self._training_line(trainer))

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Writes a line every minute; a validation within training has none."""
        if trainer.state.fn == "fit" or not self._is_due():
            return
        batches = sum(trainer.num_val_batches if trainer.validating else trainer.num_test_batches)
        done = batch_idx + 1
        split = "validation" if trainer.validating else "test"
        self._write(f"{split}: batch {done:,} of {batches:,}, {self._time_left(done, batches)}")

    on_validation_batch_end = on_test_batch_end

    def _is_due(self) -> bool:
        return self._clock() - self._written >= _INTERVAL

    def _time_left(self, done: int, total: float) -> str:
        """Estimates the remaining time from the speed since the clock was started."""
        seconds = (self._clock() - self._started) / done * (total - done)
        return f"{timedelta(seconds=round(seconds))} left"

    def _training_line(self, trainer: Trainer) -> str:
        epochs = "" if trainer.max_epochs == -1 else f" of {trainer.max_epochs}"
        line = [f"epoch {trainer.current_epoch + 1}{epochs}", f"step {trainer.global_step:,}"]
        monitors = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
        formats = {name: f"{name} {{:.4f}}" for name in monitors if name and name not in _FORMATS}
        for name, text in (_FORMATS | formats).items():
            # validation metrics may be of an earlier epoch
            is_current = self._validated or not name.startswith("val/")
            if is_current and name in trainer.callback_metrics:
                line.append(text.format(float(trainer.callback_metrics[name])))
        steps = trainer.global_step - self._first_step
        total = trainer.estimated_stepping_batches - self._first_step
        if steps and steps <= total < math.inf:
            line.append(self._time_left(steps, total))
        return ", ".join(line)

    def _write(self, text: str) -> None:
        self._written = self._clock()
        if self.is_enabled:
            note(text)
