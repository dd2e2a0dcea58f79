"""Stops training before a loss or a gradient that is not finite reaches the weights."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.optim import Optimizer

from ..errors import LocalError, UserError, listed
from ..run.loggers import is_logged


class StopOnNonFinite(Callback):
    """Checks loss and gradients before each optimizer step.

    All processes decide together: a loss can be infinite in one of them while the averaged gradients are finite. Where a
    loss scaler skips such steps by itself, they are counted, and only a long run of them is an error.

    Args:
        patience: How many steps in a row a loss scaler may skip; from its first scale, 2^16, it needs at most 16 to get
            down to 1.

    Attributes:
        skipped: How many steps the loss scaler has skipped.
    """

    def __init__(self, patience: int = 20) -> None:
        self.patience = patience
        self.skipped, self._in_a_row = 0, 0
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._indices = torch.empty(0)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keeps the indices of the batch's images."""
        self._indices = getattr(batch, "indices", torch.empty(0))  # batches of the user's own need have none

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Keeps the loss of one of the step's batches."""
        self._seen.append((loss.detach(), self._indices))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Checks the losses since the last step and their gradients; raises a UserError if one is not finite."""
        seen, self._seen = self._seen, []
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = _all_finite([*gradients, *(loss for loss, _ in seen)])
        # a collective, which every process must enter at every step: one that alone has a bad loss cannot ask the others
        finite = trainer.strategy.reduce_boolean_decision(finite)
        self._in_a_row = 0 if finite else self._in_a_row + 1
        if finite:
            return
        plugin = trainer.precision_plugin
        if isinstance(plugin, MixedPrecision) and plugin.scaler is not None and self._in_a_row <= self.patience:
            self.skipped += 1
        else:
            self._stop(trainer, seen)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the number of skipped steps, if there are any."""
        if self.skipped and is_logged(trainer):
            pl_module.log("train/skipped_steps", float(self.skipped), prog_bar=True)

    def _stop(self, trainer: Trainer, seen: list[tuple[Tensor, Tensor]]) -> None:
        mine = any(not bool(loss.isfinite()) for loss, _ in seen)
        anyone = trainer.strategy.reduce_boolean_decision(mine, all=False)
        stopped = f"training stopped at step {trainer.global_step + 1}"
        if anyone and not mine:
            raise UserError(f"{stopped}: the loss of another process is not finite")
        losses = " and ".join(f"{loss.item():.4g}" for loss, _ in seen)
        cause = f"the loss is {losses}" if mine else "the gradient is not finite"
        raise LocalError(
            f"{stopped}: {cause} in process {trainer.global_rank}{_images(trainer, seen)}; the checkpoints are from"
            " before; try a lower --model.optimizer.lr, under another --name"
        )

    def state_dict(self) -> dict[str, int]:
        """Returns the counts."""
        return {"skipped": self.skipped, "in_a_row": self._in_a_row}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Restores the counts."""
        self.skipped, self._in_a_row = state_dict["skipped"], state_dict["in_a_row"]


def _images(trainer: Trainer, seen: list[tuple[Tensor, Tensor]]) -> str:
    """Names the images of some batches; nothing where they came from no data module of ours."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
    train = getattr(data, "splits", {}).get("train")
    if train is None:
        return ""
    names = [f"'{train.name(index % len(train))}'" for _, indices in seen for index in indices.tolist()]
    return f", of the images {listed(names, 8)}"


def _all_finite(tensors: list[Tensor]) -> bool:
    """Returns False if a number is infinite or NaN; waits for the device once."""
    if not tensors:  # StochasticWeightAveraging's last epoch computes statistics alone
        return True
    if tensors[0].device.type == "cpu":  # half the time of the norm; elsewhere each sum would be a command of its own
        return bool(torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors]).sum().isfinite())
    return bool(torch.nn.utils.get_total_norm(tensors).isfinite())
