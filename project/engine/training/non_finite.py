"""Stops training if a loss, a gradient or a weight is not finite, before it is saved."""

import math
from collections.abc import Mapping, Sequence

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from ..errors import NonFiniteError, listed

_ADVICE = "the checkpoints are from before; try a lower --model.optimizer.lr, under another --name"


def require_finite(weights: Mapping[str, object], step: int) -> None:
    """Raises an error if a weight is not finite."""
    for name, value in weights.items():
        if isinstance(value, Tensor) and not value.isfinite().all():
            raise NonFiniteError(
                f"{name} has values that are not finite after step {step}; {_ADVICE}"
            )


class StopOnNonFinite(Callback):
    """Checks losses and gradients before an optimizer step, and weights before a validation.

    Lightning's ``detect_anomaly`` slows each step down. On a CPU each step is checked. Other devices
    would have to wait for Python, so only the steps are checked that are logged, which wait anyway.
    A loss scaler skips such steps by itself, until its scale is below 1.
    """

    def __init__(self) -> None:
        self._indices = torch.empty(0)
        self._batches: list[tuple[Tensor, Tensor]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """Keeps the indices of the batch's images; a user's own batches need have none."""
        self._indices = getattr(batch, "indices", torch.empty(0))

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Keeps the loss of one of the step's batches."""
        self._batches.append((loss.detach(), self._indices))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Checks the losses since the last step, and the gradients."""
        batches = self._batches
        self._batches = []
        step = trainer.global_step + 1
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
        is_cpu = pl_module.device.type == "cpu"
        if not is_cpu and (every == 0 or step % every):
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None and scaler.get_scale() >= 1:
            return
        losses = [loss.item() for loss, _ in batches]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if not all(map(math.isfinite, losses)):
            cause = f"the loss is {' and '.join(f'{loss:.4g}' for loss in losses)}"
        elif not get_total_norm([p.grad for p in parameters if p.grad is not None]).isfinite():
            cause = "the gradient is not finite"
        else:
            return
        # elsewhere, an earlier step that was not checked may be to blame
        images = _images_of(trainer, batches) if is_cpu else ""
        raise NonFiniteError(
            f"training stopped at step {step}: {cause} in process {trainer.global_rank}{images};"
            f" {_ADVICE}"
        )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks the weights; those that are saved are checked by the model."""
        require_finite(pl_module.state_dict(), trainer.global_step)


def _images_of(trainer: Trainer, batches: Sequence[tuple[Tensor, Tensor]]) -> str:
    """Names the images of batches, if they come from a data module of ours."""
    data = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
    train = getattr(data, "splits", {}).get("train")
    if train is None:
        return ""
    indices = [index for _, indices in batches for index in indices.tolist()]
    names = [f"'{train.name(index % len(train))}'" for index in indices]
    return f", of the images {listed(names, 8)}"
