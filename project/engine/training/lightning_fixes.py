"""Corrections of what Lightning does, and refusals of callbacks that would silently do something else here."""

import math
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, StochasticWeightAveraging, WeightAveraging
from torch import nn

from ..errors import UserError, listed
from ..upstream import follow_until_averaging

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class LogInterval(Callback):
    """Logs training at least once an epoch, also with fewer steps than ``log_every_n_steps``; 0 stays no logs."""

    def __init__(self) -> None:
        self._every = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers the interval that was asked for."""
        self._every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Shortens the interval to the steps of this epoch; other callbacks may change how many batches make a step."""
        steps = trainer.num_training_batches / trainer.accumulate_grad_batches
        trainer.log_every_n_steps = math.ceil(min(self._every, steps))  # type: ignore[attr-defined]


class DelayedAveraging(Callback):
    """Keeps averages at the newest weights until they start; Lightning's stay at the initial ones."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._waiting = [callback for callback in callbacks if isinstance(callback, WeightAveraging)]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Updates averages that have not started."""
        self._waiting = [averaging for averaging in self._waiting if follow_until_averaging(averaging, pl_module)]


def require_supported(callbacks: Sequence[Callback], network: nn.Module) -> None:
    """Refuses such callbacks before training; frozen layers of the network are in evaluation mode."""
    averaging = [one for one in callbacks if isinstance(one, WeightAveraging | StochasticWeightAveraging)]
    if len(averaging) > 1:
        names = [type(one).__name__ for one in averaging]
        raise UserError(
            f"--trainer.callbacks: {listed(names)} each average the weights, and a run keeps one average; keep the first"
            f" and drop {listed(names[1:])}, such as a recipe like ema.yaml"
        )
    frozen = any(isinstance(module, _BATCH_NORMS) and not module.training for module in network.modules())
    for callback in callbacks:
        if type(callback) is BackboneFinetuning:  # BatchNorm's statistics move, too (Lightning #21901, #15062)
            raise UserError(
                "BackboneFinetuning: a resumed run would freeze again what was unfrozen; train in two runs, as"
                " docs/training.md shows, the first with --model.freeze backbone"
            )
        if isinstance(callback, StochasticWeightAveraging) and frozen:
            raise UserError(
                "StochasticWeightAveraging: it resets the running statistics of BatchNorm, and those of frozen layers would"
                " stay so; freeze nothing, or average with EMAWeightAveraging"
            )
