"""Refuses callbacks of Lightning that would silently do something else here than they are for."""

from collections.abc import Sequence

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    LearningRateFinder,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import nn

from ..errors import UserError, listed

AVERAGES = (WeightAveraging, StochasticWeightAveraging)
"""Those that average weights."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def require_supported(callbacks: Sequence[Callback], network: nn.Module) -> None:
    """Refuses such callbacks before training.

    Args:
        callbacks: The trainer's.
        network: The network that is trained; what is frozen is in evaluation mode.
    """
    require_one_average([type(callback).__name__ for callback in callbacks if isinstance(callback, AVERAGES)])
    frozen = any(isinstance(module, _BATCH_NORMS) and not module.training for module in network.modules())
    for callback in callbacks:
        if type(callback) is BackboneFinetuning:  # BatchNorm's statistics move, too (Lightning #21901, #15062)
            raise UserError(
                "BackboneFinetuning: a resumed run would freeze again what was unfrozen; train in two runs, as"
                " docs/finetuning.md shows, the first with --model.freeze backbone"
            )
        if isinstance(callback, StochasticWeightAveraging) and frozen:
            raise UserError(
                "StochasticWeightAveraging: it resets the running statistics of BatchNorm, and those of frozen layers would"
                " stay so; freeze nothing, or average with EMAWeightAveraging"
            )


def require_no_finder(callbacks: Sequence[Callback]) -> None:
    """Refuses finders, which would change a run after its steps were planned."""
    for callback in callbacks:
        if isinstance(callback, BatchSizeFinder | LearningRateFinder):
            name = type(callback).__name__
            raise UserError(f"--trainer.callbacks: {name} searches in Python alone, as docs/python.md shows")


def require_one_average(averaging: Sequence[str]) -> None:
    """Refuses a second average of the weights, which would be validated, saved and tested in place of the first."""
    if len(averaging) > 1:
        raise UserError(
            f"--trainer.callbacks: {listed(averaging)} each average the weights, and a run keeps one average; keep the first"
            f" and drop {listed(averaging[1:])}, such as a recipe like ema.yaml"
        )
