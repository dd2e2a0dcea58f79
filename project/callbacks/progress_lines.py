"""Progress without a terminal: a line for each epoch, or a minute, in place of a bar."""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from project.engine import note

_EVERY = 60.0
"""Seconds between two lines."""

_SHOWN = {
    "train/loss": "loss {:.4f}",
    "train/accuracy": "accuracy {:.2%}",
    "val/loss": "validation loss {:.4f}",
    "val/accuracy": "validation accuracy {:.2%}",
}


class ProgressLines(ProgressBar):
    """Writes a line to standard error for each epoch, and every minute of a long one."""

    is_enabled = True  # ``LightningModule.print`` asks for it

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock

    def disable(self) -> None:
        """Stops writing; Lightning calls it in all processes but the first."""
        self.is_enabled = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clocks of training and of an epoch, as a run may resume within one."""
        self._began = self._clock()
        self._first_step = trainer.global_step
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of an epoch."""
        self._counted = self._written = self._clock()
        self._images = 0
        self._seconds = 0.0
        self._validated = False

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of a test, or of a validation outside of training."""
        if trainer.state.fn != "fit":
            self.on_train_epoch_start(trainer, pl_module)

    on_validation_start = on_test_start

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts a batch, and writes a line every minute, except at the end of an epoch."""
        ends = trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if self._count(trainer, batch) and not ends:
            self._write(self._training_line(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of the epoch, validation included."""
        self._write(self._training_line(trainer))

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Counts a batch, and writes a line every minute; a validation within training has none."""
        if trainer.state.fn == "fit" or not self._count(trainer, batch):
            return
        batches = sum(trainer.num_val_batches if trainer.validating else trainer.num_test_batches)
        done = batch_idx + 1
        if done < batches:
            left = _duration(self._seconds / done * (batches - done))
            place = f"batch {done:,} of {batches:,}"
            self._write(f"{_split(trainer)}: {place}, {self._speed()}, {left} left")

    on_validation_batch_end = on_test_batch_end

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of a test; in training, leaves validation's time out of the epoch's."""
        if trainer.state.fn == "fit":
            self._counted = self._clock()
            self._validated = True
        else:
            self._write(f"{_split(trainer)}: {self._speed()}")

    on_validation_end = on_test_end

    def _count(self, trainer: Trainer, batch: Any) -> bool:
        """Counts a batch; returns True if the last line is a minute ago."""
        now = self._clock()
        self._seconds += now - self._counted
        self._counted = now
        self._images += trainer.world_size * len(batch[0])
        return now - self._written >= _EVERY

    def _speed(self) -> str:
        speed = self._images / max(self._seconds, 1e-9)
        return f"{speed:,.{0 if speed >= 10 else 1}f} images/s"

    def _training_line(self, trainer: Trainer) -> str:
        of = "" if trainer.max_epochs == -1 else f" of {trainer.max_epochs}"
        line = [f"epoch {trainer.current_epoch + 1}{of}", f"step {trainer.global_step:,}"]
        monitors = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
        texts = {name: f"{name} {{:.4f}}" for name in monitors if name and name not in _SHOWN}
        for name, text in (_SHOWN | texts).items():
            # metrics of validation may be of an earlier epoch
            if name in trainer.callback_metrics and (self._validated or name[:4] != "val/"):
                line.append(text.format(float(trainer.callback_metrics[name])))
        line.append(self._speed())
        steps = trainer.global_step - self._first_step
        left = trainer.estimated_stepping_batches - trainer.global_step
        if steps and 0 <= left < math.inf:
            seconds = (self._clock() - self._began) / steps * left
            line.append(f"{_duration(seconds)} left")
        return ", ".join(line)

    def _write(self, text: str) -> None:
        self._written = self._clock()
        if self.is_enabled:
            note(text)


def _duration(seconds: float) -> timedelta:
    return timedelta(seconds=round(seconds))


def _split(trainer: Trainer) -> str:
    return "validation" if trainer.validating else "test"
