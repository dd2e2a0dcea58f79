"""Refusal of callbacks of Lightning that would silently do something else here than they are for."""

from collections.abc import Sequence

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import nn

from ..errors import UserError, listed

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def require_supported(callbacks: Sequence[Callback], network: nn.Module) -> None:
    """Refuses such callbacks before training; what is frozen of the network is in evaluation mode."""
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
