"""Callbacks of Lightning that cannot do here what they are for."""

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BackboneFinetuning, BatchSizeFinder, LearningRateFinder, ModelPruning

from project.errors import UserError

_INSTEAD: dict[type[Callback], str] = {
    BackboneFinetuning: (  # it freezes again on resuming (Lightning #21901), and lets BatchNorm's statistics move (#15062)
        "a resumed run would freeze again what was unfrozen; train in two runs, as docs/finetuning.md shows, the first"
        " with --model.freeze_backbone true"
    ),
}


def require_supported(trainer: Trainer, channels_last: bool, caches_features: bool) -> None:
    """Refuses callbacks that would fail in the middle of Lightning.

    Args:
        trainer: With its callbacks.
        channels_last: Whether the network's weights lie in memory so.
        caches_features: Whether the features of a frozen backbone are computed once, when training starts.

    Raises:
        UserError: There is such a callback; the text says what to do instead.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    for callback in callbacks:
        reason = _INSTEAD.get(type(callback))
        if isinstance(callback, ModelPruning) and channels_last:
            reason = "torch prunes weights only where channels are not the fastest dimension; add --model.channels_last false"
        if isinstance(callback, BatchSizeFinder | LearningRateFinder) and caches_features:
            reason = "it tries steps before the features are cached; leave out --model.cache_features"
        if reason is not None:
            raise UserError(f"{type(callback).__name__}: {reason}")
