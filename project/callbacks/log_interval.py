"""How often training is logged."""

import math

from lightning.pytorch import Callback, LightningModule, Trainer


class LogInterval(Callback):
    """Has training logged once an epoch at least, also where an epoch has fewer steps than ``log_every_n_steps``.

    With few images, all of training may have fewer, and would leave no curve.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shortens the interval to an epoch's steps; 0, which switches logs off, stays."""
        batches, every = trainer.num_training_batches, trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
        if math.isfinite(batches):
            trainer.log_every_n_steps = log_interval(every, int(batches), trainer.accumulate_grad_batches)  # type: ignore[attr-defined]


def log_interval(every: int, batches: int, accumulation: int) -> int:
    """The steps from one log to the next.

    Args:
        every: What was asked for.
        batches: Of an epoch.
        accumulation: How many batches make a step.
    """
    return min(every, max(1, math.ceil(batches / accumulation)))
