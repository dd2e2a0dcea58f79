"""Averages of weights that start late."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging

from ..upstream import follow_until_averaging


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
        """Brings averages that have not started up to the step that was taken."""
        self._waiting = [averaging for averaging in self._waiting if follow_until_averaging(averaging, pl_module)]
