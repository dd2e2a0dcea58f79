"""Callbacks of Lightning that cannot do here what they are for."""

from collections.abc import Sequence

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EMAWeightAveraging,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch import nn

from ..errors import UserError, listed

AVERAGES = (WeightAveraging, StochasticWeightAveraging)
"""Those that average weights."""

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def require_supported(trainer: Trainer, network: nn.Module, channels_last: bool) -> None:
    """Refuses callbacks that would fail in the middle of Lightning.

    Args:
        trainer: With its callbacks.
        network: What it trains; what is frozen is in evaluation mode.
        channels_last: Whether the network's weights lie in memory so.

    Raises:
        UserError: There is such a callback; the text says what to do instead.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    require_one_average([type(callback).__name__ for callback in callbacks if isinstance(callback, AVERAGES)])
    for callback in callbacks:
        reason: str | None = None
        if type(callback) is BackboneFinetuning:  # it lets BatchNorm's statistics move, too (Lightning #21901, #15062)
            reason = (
                "a resumed run would freeze again what was unfrozen; train in two runs, as docs/finetuning.md shows, the"
                " first with --model.freeze_backbone true"
            )
        if isinstance(callback, ModelPruning) and channels_last:
            reason = "torch prunes weights only where channels are not the fastest dimension; add --model.channels_last false"
        if isinstance(callback, StochasticWeightAveraging) and _has_frozen_statistics(network):
            reason = (
                "it resets the running statistics of BatchNorm, and those of frozen layers would stay so; freeze nothing,"
                " or average with EMAWeightAveraging"
            )
        if isinstance(callback, EMAWeightAveraging):
            reason = _never_as_asked(callback)
        if reason is not None:
            raise UserError(f"{type(callback).__name__}: {reason}")


def require_resumable(trainer: Trainer) -> None:
    """Refuses callbacks with which a resumed run would come to another end.

    Args:
        trainer: With its callbacks, as it loads a checkpoint to go on from.

    Raises:
        UserError: There is such a callback.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    if any(isinstance(callback, ModelPruning) for callback in callbacks):  # a checkpoint has no masks
        raise UserError("ModelPruning: a resumed run would train what was pruned; start another with a new --name")


def require_one_average(averaging: Sequence[str]) -> None:
    """Refuses a second average of the weights, which would be validated, saved and tested in place of the first.

    Args:
        averaging: What to call each of the callbacks that average weights, in their order.

    Raises:
        UserError: There are several.
    """
    if len(averaging) > 1:
        raise UserError(
            f"--trainer.callbacks: {listed(averaging)} each average the weights, and a run keeps one average; keep the first"
            f" and drop {listed(averaging[1:])}, such as a recipe like ema.yaml"
        )


def _has_frozen_statistics(network: nn.Module) -> bool:
    return any(isinstance(module, _BATCH_NORMS) and not module.training for module in network.modules())


def _never_as_asked(averaging: EMAWeightAveraging) -> str | None:
    """What is wrong with when an average would be updated: after steps or epochs that nobody would expect, or never."""
    if type(averaging).should_update is not EMAWeightAveraging.should_update:
        return None
    every, epoch = averaging.update_every_n_steps, averaging.update_starting_at_epoch
    if not isinstance(every, int) or every < 0:
        return f"update_every_n_steps must be a whole number, 0 or more, got {every}"
    if every == 0 and epoch is None:
        return "it never averages; set update_every_n_steps to 1 or more, or update_starting_at_epoch"
    if every > 0 and epoch is not None and averaging.update_starting_at_step is None:
        return (
            "update_starting_at_epoch delays no step, only an average after each epoch; give update_starting_at_step, or"
            " update_every_n_steps 0 for an average after epochs alone"
        )
    return None
