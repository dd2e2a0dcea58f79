"""Small corrections of what Lightning does: the interval of logs, and averages of weights that start late."""

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging

from ..upstream import follow_until_averaging


class LogInterval(Callback):
    """Logs training at least once an epoch, also where an epoch has fewer steps than ``log_every_n_steps``.

    With few images, all of training may have fewer, and would leave no curve. 0, which switches logs off, stays.
    """

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
    """Lets an average that has not started be the newest weights, so that these are validated and saved.

    Lightning's would be the weights before training until then.

    Args:
        averaging: The run's callbacks that average weights.
    """

    def __init__(self, averaging: Sequence[WeightAveraging]) -> None:
        self._waiting = list(averaging)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Updates averages that have not started."""
        self._waiting = [averaging for averaging in self._waiting if follow_until_averaging(averaging, pl_module)]
