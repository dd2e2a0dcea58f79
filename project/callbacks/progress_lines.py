"""Progress without a terminal: a line for each epoch, or a minute, in place of a bar."""

import math
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from project.engine.run.progress import EVERY, duration, note, rate

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
        self._training_began = self._counted = self._said = self._seconds = 0.0
        self._first_step = self._images = 0
        self._validated = False

    def disable(self) -> None:
        """Stops writing; Lightning calls it in all processes but the first."""
        self.is_enabled = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of the remaining time, and that of an epoch, as a run may resume within one."""
        self._training_began, self._first_step = self._clock(), trainer.global_step
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of an epoch."""
        self._counted = self._said = self._clock()
        self._images, self._seconds, self._validated = 0, 0.0, False

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock of a test, or of a validation outside of training."""
        if trainer.state.fn != "fit":
            self.on_train_epoch_start(trainer, pl_module)

    on_validation_start = on_test_start

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts a batch, and writes a line every minute; after the last batch of an epoch, that of the epoch follows."""
        ends = trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if self._count(trainer, batch) and not ends:
            self._say(self._training_line(trainer))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of the epoch, validation included."""
        self._say(self._training_line(trainer))

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
        if trainer.state.fn == "fit":
            return
        batches, done = (
            sum(trainer.num_val_batches if trainer.validating else trainer.num_test_batches),
            batch_idx + 1,
        )
        if self._count(trainer, batch) and done < batches:
            left = self._seconds / done * (batches - done)
            self._say(
                f"{_split(trainer)}: batch {done:,} of {batches:,}, {self._speed()}, {duration(left)} left"
            )

    on_validation_batch_end = on_test_batch_end

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the line of a test or a validation; within training, leaves its time out of the epoch's instead."""
        if trainer.state.fn == "fit":
            self._counted, self._validated = self._clock(), True
        else:
            self._say(f"{_split(trainer)}: {self._speed()}")

    on_validation_end = on_test_end

    def _count(self, trainer: Trainer, batch: Any) -> bool:
        """Counts a batch; returns True if the last line is a minute ago."""
        now = self._clock()
        self._seconds += now - self._counted
        self._counted = now
        self._images += trainer.world_size * len(batch[0])
        return now - self._said >= EVERY

    def _speed(self) -> str:
        return rate(self._images, self._seconds)

    def _training_line(self, trainer: Trainer) -> str:
        epoch = f"epoch {trainer.current_epoch + 1}" + (
            f" of {trainer.max_epochs}" if trainer.max_epochs != -1 else ""
        )
        metrics = trainer.callback_metrics  # those of validation may be of an earlier epoch
        monitors = [getattr(callback, "monitor", None) for callback in trainer.checkpoint_callbacks]
        texts = _SHOWN | {
            name: f"{name} {{:.4f}}" for name in monitors if name and name not in _SHOWN
        }
        shown = [
            text.format(float(metrics[name]))
            for name, text in texts.items()
            if name in metrics and (self._validated or not name.startswith("val/"))
        ]
        line = [epoch, f"step {trainer.global_step:,}", *shown, self._speed()]
        steps, total = trainer.global_step - self._first_step, trainer.estimated_stepping_batches
        if steps and 0 < total < math.inf:
            left = (self._clock() - self._training_began) / steps * (total - trainer.global_step)
            line.append(f"{duration(max(0.0, left))} left")
        return ", ".join(line)

    def _say(self, text: str) -> None:
        self._said = self._clock()
        if self.is_enabled:
            note(text)


def _split(trainer: Trainer) -> str:
    return "validation" if trainer.validating else "test"
