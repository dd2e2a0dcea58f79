"""How often training is logged."""

import math
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class LogInterval(Callback):
    """Has training logged once an epoch at least, also where an epoch has fewer steps than ``log_every_n_steps``.

    With few images, all of training may have fewer, and would leave no curve.
    """

    def __init__(self) -> None:
        self._every = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers what was asked for."""
        self._every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Shortens the interval to the steps of this epoch; 0, which switches logs off, stays.

        Other callbacks may change from epoch to epoch how many batches make a step, also in the middle of a resumed one.
        """
        batches = trainer.num_training_batches
        if math.isfinite(batches):
            trainer.log_every_n_steps = log_interval(self._every, int(batches), trainer.accumulate_grad_batches)  # type: ignore[attr-defined]


def log_interval(every: int, batches: int, accumulation: int) -> int:
    """The steps from one log to the next.

    Args:
        every: What was asked for.
        batches: Of an epoch.
        accumulation: How many batches make a step.
    """
    return min(every, max(1, math.ceil(batches / accumulation)))
