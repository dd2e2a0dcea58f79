"""Small corrections of what Lightning does: the interval of logs, and averages of weights that start late."""

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging

from ..upstream import follow_until_averaging


class LogInterval(Callback):
    """Logs training at least once an epoch, also with fewer steps than ``log_every_n_steps``; 0 stays no logs."""

    def __init__(self) -> None:
        self._every = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keeps what was asked for."""
        self._every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Shortens the interval to the steps of this epoch; other callbacks may change how many batches make a step."""
        batches = trainer.num_training_batches
        if math.isfinite(batches):
            steps = max(1, math.ceil(batches / trainer.accumulate_grad_batches))
            trainer.log_every_n_steps = min(self._every, steps)  # type: ignore[attr-defined]


class DelayedAveraging(Callback):
    """Lets the averages of some callbacks be the newest weights until they start; Lightning's are those before training."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._waiting = [callback for callback in callbacks if isinstance(callback, WeightAveraging)]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Updates averages that have not started."""
        self._waiting = [averaging for averaging in self._waiting if follow_until_averaging(averaging, pl_module)]
