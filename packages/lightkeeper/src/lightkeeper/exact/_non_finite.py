"""Stops training if a gradient or a weight is not finite, before it is saved."""

from collections.abc import Collection, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from ._errors import NonFiniteError, note
from ._loggers import logging_interval

_ADVICE = "the checkpoints are from before; try a lower learning rate, in another run"


def require_finite(
    weights: Mapping[str, object], step: int, masks: Collection[str] = frozenset()
) -> None:
    """Raises a NonFiniteError if a weight is not finite, except for ``masks``, by name."""
    if wrong := [name for name in _not_finite(weights) if name not in masks]:
        raise NonFiniteError(
            f"{wrong[0]} has values that are not finite after step {step}; {_ADVICE}"
        )


def _not_finite(weights: Mapping[str, object]) -> list[str]:
    return [
        name
        for name, value in weights.items()
        if isinstance(value, Tensor) and not value.isfinite().all()
    ]


class StopOnNonFinite(Callback):
    """Stops training at a gradient, a weight or a loss that is not finite, before it is saved.

    The losses are those that the model logs as ``train/loss``, ``val/loss`` and ``test/loss``.
    Buffers that are not finite from the start, such as masks, stay as they are.

    Lightning's ``detect_anomaly`` slows each step down. On a CPU each step is checked. Other devices
    would have to wait for Python, so only the steps are checked that are logged, which wait anyway.
    A loss scaler skips such steps by itself, until its scale is below 1.
    """

    _masks: Collection[str] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remembers what is not finite from the start."""
        self._masks = frozenset(_not_finite(pl_module.state_dict()))

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Checks the weights, which may be saved between two steps that are checked."""
        if self._masks is not None:
            require_finite(checkpoint["state_dict"], trainer.global_step, self._masks)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Checks the gradient, which a loss that is not finite spoils, too."""
        step = trainer.global_step + 1
        every = logging_interval(trainer)
        if pl_module.device.type != "cpu" and (every == 0 or step % every):
            return
        scaler = _scaler_of(trainer)
        if scaler is not None and scaler.get_scale() >= 1:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not get_total_norm([p.grad for p in parameters if p.grad is not None]).isfinite():
            raise NonFiniteError(
                f"training stopped at step {step}: the gradient is not finite; {_ADVICE}"
            )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the loss that was logged last, and the weights.

        The gradient of such a loss may be finite. It is the same in all processes, though the loss
        of one alone is infinite.
        """
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None and not loss.isfinite() and _scaler_of(trainer) is None:
            raise NonFiniteError(
                f"training stopped after step {trainer.global_step}: train/loss is not"
                f" finite; {_ADVICE}"
            )
        if self._masks is not None:
            require_finite(pl_module.state_dict(), trainer.global_step, self._masks)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the loss of the validation, or of the test, where finite weights may overflow.

        A loss scaler belongs to float16, in which a network may do so until it has learnt a little.
        """
        split = "test" if trainer.testing else "val"
        loss = trainer.callback_metrics.get(f"{split}/loss")
        if loss is None or loss.isfinite() or trainer.sanity_checking:
            return
        problem = f"{split}/loss is not finite"
        if split == "test":
            raise NonFiniteError(f"{problem}; to record it, leave out StopOnNonFinite")
        problem = f"after step {trainer.global_step}, {problem}"
        if _scaler_of(trainer) is None:
            raise NonFiniteError(f"{problem}; {_ADVICE}")
        rank_zero_only(note)(f"{problem}; training goes on")

    on_test_end = on_validation_end


def _scaler_of(trainer: Trainer) -> GradScaler | None:
    return getattr(trainer.precision_plugin, "scaler", None)
