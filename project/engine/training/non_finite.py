"""Stops training before a loss or a gradient that is not finite reaches the weights."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.optim import Optimizer

from ..errors import LocalError, UserError, listed
from ..run.tensorboard import is_logged

_NAMES_SHOWN = 8


class StopOnNonFinite(Callback):
    """Looks at loss and gradients before each optimizer step.

    Gradients are averaged over all processes, so a bad one shows in all of them, at the same step. Where a loss scaler
    skips such steps by itself, they are counted, and only a long run of them is an error.

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
        """Remembers which images the batch has."""
        self._indices = getattr(batch, "indices", torch.empty(0))  # a loader of others does not number its images

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Remembers the loss of one of the step's batches."""
        self._seen.append((loss.detach(), self._indices))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Looks at the losses since the last step and at what came of them.

        Raises:
            UserError: Something is not finite.
        """
        seen, self._seen = self._seen, []
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = _all_finite([*gradients, *(loss for loss, _ in seen)])
        self._in_a_row = 0 if finite else self._in_a_row + 1
        if not finite and not self._is_skipped(trainer):
            self._stop(trainer, seen)

    def _is_skipped(self, trainer: Trainer) -> bool:
        plugin = trainer.precision_plugin
        if not isinstance(plugin, MixedPrecision) or plugin.scaler is None or self._in_a_row > self.patience:
            return False
        self.skipped += 1
        return True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Shows how many steps were skipped, if any."""
        if self.skipped and is_logged(trainer):
            pl_module.log("train/skipped_steps", float(self.skipped), prog_bar=True)

    def _stop(self, trainer: Trainer, seen: list[tuple[Tensor, Tensor]]) -> None:
        mine = any(not bool(loss.isfinite()) for loss, _ in seen)
        anyone = trainer.strategy.reduce_boolean_decision(mine, all=False)
        step = f"step {trainer.global_step + 1} of training is not taken"
        if anyone and not mine:
            raise UserError(f"{step}: the loss of another process is not finite")
        what = (
            f"the loss is {' and '.join(f'{loss.item():.4g}' for loss, _ in seen)}"
            if mine
            else "the gradient is not finite"
        )
        raise LocalError(
            f"{step}: {what} in process {trainer.global_rank}{_images(trainer, seen)}; the checkpoints are those from before;"
            " try a lower --model.optimizer.lr, under another --name"
        )

    def state_dict(self) -> dict[str, int]:
        """The counts."""
        return {"skipped": self.skipped, "in_a_row": self._in_a_row}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Takes the counts up."""
        self.skipped, self._in_a_row = state_dict["skipped"], state_dict["in_a_row"]


def _images(trainer: Trainer, seen: list[tuple[Tensor, Tensor]]) -> str:
    """Names the images of some batches; nothing where they came from no data module of ours."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
    train = getattr(data, "splits", {}).get("train")
    if train is None:
        return ""
    names = [f"'{train.name(index % len(train))}'" for _, indices in seen for index in indices.tolist()]
    return f", of the images {listed(names, _NAMES_SHOWN)}"


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether no number is infinite or NaN, for which it waits for the device once."""
    if not tensors:  # StochasticWeightAveraging's last epoch computes statistics alone
        return True
    if tensors[0].device.type == "cpu":  # half the time of the norm; elsewhere each sum would be a command of its own
        return bool(torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors]).sum().isfinite())
    return bool(torch.nn.utils.get_total_norm(tensors).isfinite())
