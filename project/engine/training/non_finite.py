"""Stops training before a loss or a gradient that is not finite reaches the weights."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, distributed
from torch.optim import Optimizer

from ..errors import NonFiniteError, UserError, listed
from ..run.loggers import is_logged


class StopOnNonFinite(Callback):
    """Checks loss and gradients before each optimizer step.

    All processes decide together: a loss can be infinite in one of them while the averaged gradients are finite. Where a
    loss scaler skips such steps by itself, they are counted, and only a long run of them is an error.

    On a GPU, Python does not wait for the answer: the update obeys it on the device. It is read in the next step, when the
    GPU has that one's work to go on with, and before weights are validated or saved. A bad step costs one more step, then;
    an optimizer that torch has not fused costs a copy of the weights in each step. The optimizer's own state and
    BatchNorm's statistics may take in what is not finite, and are not saved any more.

    Args:
        patience: How many steps in a row a loss scaler may skip; from its first scale, 2^16, it needs at most 16 to get
            down to 1.
    """

    def __init__(self, patience: int = 20) -> None:
        self.patience = patience
        self.skipped, self._in_a_row = 0, 0
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._indices = torch.empty(0)
        self._unread: tuple[int, list[tuple[Tensor, Tensor]], Callable[[], bool]] | None = None
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepares optimizers to restore the weights after a step."""
        for optimizer in trainer.optimizers:
            optimizer.register_step_post_hook(self._restore)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the indices of the batch's images."""
        self._indices = getattr(
            batch, "indices", torch.empty(0)
        )  # batches of the user's own need have none

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Keeps the loss of one of the step's batches."""
        self._seen.append((loss.detach(), self._indices))

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Checks the losses since the last step and their gradients; raises a UserError if one is not finite."""
        self._read(trainer)
        seen, self._seen = self._seen, []
        parameters = [
            p for group in optimizer.param_groups for p in group["params"] if p.grad is not None
        ]
        flag = _non_finite([*(p.grad for p in parameters), *(loss for loss, _ in seen)]).to(
            pl_module.device
        )
        if trainer.world_size > 1:
            # a collective, which every process must enter at every step: one that alone has a bad loss cannot ask the
            # others; Lightning's own waits for the device
            distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        later = (
            None if _has_scaler(trainer) else _copied(flag)
        )  # torch's scaler waits for the device itself
        self._unread = trainer.global_step + 1, seen, later or partial(bool, flag)
        if later is None:
            self._read(trainer)
        elif all(group.get("fused") for group in optimizer.param_groups) and _is_of_torch(
            type(optimizer).step
        ):
            optimizer.found_inf = flag  # type: ignore[attr-defined]  # as torch's scaler does
        else:
            self._before = [(flag, p, p.detach().clone()) for p in parameters]

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Any = None
    ) -> None:
        """Raises a UserError if the last step was not finite."""
        self._read(trainer)

    on_validation_start = on_train_epoch_end = on_save_checkpoint

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Logs the number of skipped steps, if there are any; where a step is logged, it is waited for."""
        if not is_logged(trainer):
            return
        self._read(trainer)
        if self.skipped:
            pl_module.log("train/skipped_steps", float(self.skipped), prog_bar=True)

    @torch.no_grad()
    def _restore(self, *_: Any) -> None:
        """Undoes the step on the device if it was not finite."""
        before, self._before = self._before, []
        for flag, parameter, value in before:
            torch.where(flag > 0, value, parameter, out=parameter)

    def _read(self, trainer: Trainer) -> None:
        """Counts or raises what the last step's check has found, once."""
        if self._unread is None:
            return
        (step, seen, is_bad), self._unread = self._unread, None
        self._in_a_row = self._in_a_row + 1 if is_bad() else 0
        if self._in_a_row and _has_scaler(trainer) and self._in_a_row <= self.patience:
            self.skipped += 1
        elif self._in_a_row:
            self._stop(trainer, step, seen)

    def _stop(self, trainer: Trainer, step: int, seen: list[tuple[Tensor, Tensor]]) -> None:
        mine = any(not bool(loss.isfinite()) for loss, _ in seen)
        anyone = trainer.strategy.reduce_boolean_decision(mine, all=False)
        stopped = f"training stopped at step {step}"
        if anyone and not mine:
            raise UserError(f"{stopped}: the loss of another process is not finite")
        losses = " and ".join(f"{loss.item():.4g}" for loss, _ in seen)
        cause = f"the loss is {losses}" if mine else "the gradient is not finite"
        raise NonFiniteError(
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
    names = [
        f"'{train.name(index % len(train))}'" for _, indices in seen for index in indices.tolist()
    ]
    return f", of the images {listed(names, 8)}"


def _is_of_torch(step: Callable[..., Any]) -> bool:
    """Returns False for a subclass's own step, which need not obey ``found_inf``."""
    return step.__module__.startswith("torch.")


def _has_scaler(trainer: Trainer) -> bool:
    return (
        isinstance(plugin := trainer.precision_plugin, MixedPrecision) and plugin.scaler is not None
    )


def _copied(flag: Tensor) -> Callable[[], bool] | None:
    """Starts to copy a GPU's flag, and returns a function that waits for the copy; None if there is nothing to wait for."""
    if not flag.is_cuda:
        return None
    copy, event = (
        flag.to("cpu", non_blocking=True),
        torch.Event(flag.device),
    )  # torch makes that memory pinned
    event.record()

    def read() -> bool:
        event.synchronize()
        return bool(copy)

    return read


def _non_finite(tensors: list[Tensor]) -> Tensor:
    """Returns 1 if a number is infinite or NaN, else 0, float ()."""
    if not tensors:  # StochasticWeightAveraging's last epoch computes statistics alone
        return torch.zeros(())
    if (
        tensors[0].device.type == "cpu"
    ):  # half the time of the norm; elsewhere each sum would be a command of its own
        total = torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors]).sum()
    else:
        total = torch.nn.utils.get_total_norm(tensors)
    return 1 - total.isfinite().float()
