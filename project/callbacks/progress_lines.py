"""Progress without a terminal: a line for each epoch, or a minute, in place of a bar."""

import sys
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from project.engine.run.progress import EVERY, duration, rate

_SHOWN = {
    "train/loss": "loss {:.4f}",
    "train/accuracy": "accuracy {:.2%}",
    "val/loss": "validation loss {:.4f}",
    "val/accuracy": "validation accuracy {:.2%}",
}


class ProgressLines(ProgressBar):
    """Writes a line to standard error for each epoch, and every minute of a long one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._enabled = clock, True
        self._training_began = self._began = self._batch_ended = self._said = self._validation_began = 0.0
        self._batches = self._images = 0
        self._validated = False

    @property
    def is_enabled(self) -> bool:
        """False in all processes but the first; ``LightningModule.print`` asks for it."""
        return self._enabled

    def disable(self) -> None:
        """Stops writing; Lightning calls it in all processes but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Writes again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of the remaining time."""
        self._training_began, self._batches = self._clock(), 0
        self._begin()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of the epoch."""
        self._begin()
        self._validated = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts a batch, and writes a line every minute; after the last batch of an epoch, that of the epoch follows."""
        self._count(trainer, batch)
        self._batches += 1
        ends = trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if self._batch_ended - self._said >= EVERY and not ends:
            self._say(self._training_line(trainer, batch_idx + 1))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of the epoch, validation included."""
        self._say(self._training_line(trainer, trainer.num_training_batches))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of the validation."""
        if trainer.state.fn == "validate":
            self._begin()
        self._validation_began = self._clock()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._begin()

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Counts a batch, and writes a line every minute; a validation within training has none."""
        if trainer.state.fn == "fit":
            return
        self._count(trainer, batch)
        batches = sum(trainer.num_val_batches if trainer.validating else trainer.num_test_batches)
        if self._batch_ended - self._said >= EVERY and batch_idx + 1 < batches:
            split = "validation" if trainer.validating else "test"
            left = (self._batch_ended - self._began) / (batch_idx + 1) * (batches - batch_idx - 1)
            done = f"batch {batch_idx + 1:,} of {batches:,}"
            self._say(f"{split}: {done}, {self._speed()}, {duration(left)} left")

    on_validation_batch_end = on_test_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of a validation; within training, subtracts its time from the epoch's instead."""
        if trainer.state.fn == "validate":
            self._say(f"validation: {self._speed()}")
            return
        seconds = self._clock() - self._validation_began
        self._began, self._batch_ended, self._validated = self._began + seconds, self._batch_ended + seconds, True

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of the test."""
        self._say(f"test: {self._speed()}")

    def _begin(self) -> None:
        self._began = self._batch_ended = self._said = self._clock()
        self._images = 0

    def _count(self, trainer: Trainer, batch: Any) -> None:
        self._images += trainer.world_size * len(getattr(batch, "images", batch[0]))
        self._batch_ended = self._clock()

    def _speed(self) -> str:
        return rate(self._images, self._batch_ended - self._began)

    def _training_line(self, trainer: Trainer, done: float) -> str:
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else None
        epoch = f"epoch {trainer.current_epoch + 1}" + (f" of {epochs}" if epochs is not None else "")
        metrics = trainer.callback_metrics  # those of validation may be of an earlier epoch
        monitors = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
        texts = _SHOWN | {name: f"{name} {{:.4f}}" for name in monitors if name and name not in _SHOWN}
        shown = [
            text.format(float(metrics[name]))
            for name, text in texts.items()
            if name in metrics and (self._validated or not name.startswith("val/"))
        ]
        left = self._left(trainer, done, epochs)
        remaining = [f"{duration(left)} left"] if left is not None else []
        return ", ".join([epoch, f"step {trainer.global_step:,}", *shown, self._speed(), *remaining])

    def _left(self, trainer: Trainer, done: float, epochs: int | None) -> float | None:
        """Estimates the seconds to the end of training, if that is known, from all the time that its batches took."""
        batches = trainer.num_training_batches
        ends = []
        if epochs is not None and batches != float("inf"):
            ends.append(batches - done + batches * (epochs - trainer.current_epoch - 1))
        if trainer.max_steps != -1:
            ends.append((trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches)
        if not ends or not self._batches:
            return None
        return max(0.0, min(ends) * (self._clock() - self._training_began) / self._batches)

    def _say(self, text: str) -> None:
        self._said = self._clock()
        if self._enabled:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
