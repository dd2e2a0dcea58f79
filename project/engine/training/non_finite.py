"""Stops training if a loss or a gradient is not finite, before it is validated or saved."""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor
from torch.optim import Optimizer

from ..errors import NonFiniteError, UserError, listed
from ..run.loggers import is_logged


class _Step(NamedTuple):
    """An optimizer step.

    Attributes:
        number: The number of the step, from 1.
        batches: Loss and image indices of each batch.
        read: Returns if the gradient and the losses are bad; waits for the device.
    """

    number: int
    batches: list[tuple[Tensor, Tensor]]
    read: Callable[[], list[bool]]


class StopOnNonFinite(Callback):
    """Checks losses and gradients before each optimizer step.

    Lightning's ``detect_anomaly`` slows each step down and stops one process alone. DDP has
    averaged the gradients, so all processes see the same and stop together. A loss that is infinite
    in one process although its gradients are finite stops all where ``train/loss`` is logged, which
    is the same in all.

    On a GPU, Python reads the answer in the next step, when the GPU has that one's work to go on
    with, and before weights are validated or saved. Where a loss scaler skips such steps by itself,
    only a long run of them is an error.

    Args:
        patience: How many steps in a row a loss scaler may skip; from its first scale, 2^16, it
            needs at most 16 to get down to 1.
    """

    def __init__(self, patience: int = 20) -> None:
        self.patience = patience
        self._in_a_row = 0
        self._indices = torch.empty(0)
        self._batches: list[tuple[Tensor, Tensor]] = []
        self._unread: _Step | None = None
        self._suspect: _Step | None = None

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
        """Checks the gradients, and the losses since the last step."""
        self._read(trainer)
        batches = self._batches
        self._batches = []
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        losses = [loss for loss, _ in batches]
        flags = torch.stack([_non_finite(part, pl_module.device) for part in (gradients, losses)])
        # a scaler waits for the device
        later = None if _has_scaler(trainer) else _copied(flags)
        self._unread = _Step(trainer.global_step + 1, batches, later or flags.tolist)
        if later is None:
            self._read(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: object = None
    ) -> None:
        """Raises a UserError if the last step, or the loss logged last, was not finite."""
        self._read(trainer)
        logged = trainer.callback_metrics.get("train/loss")
        if logged is None or logged.isfinite() or _has_scaler(trainer):
            return
        if self._suspect is not None:
            _stop(trainer, self._suspect, bad_loss=True)
        raise UserError(
            f"training stopped after step {trainer.global_step}: train/loss is not finite"
        )

    on_validation_start = on_train_epoch_end = on_save_checkpoint

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Checks steps that are logged, which wait for the device anyway."""
        if is_logged(trainer):
            self.on_save_checkpoint(trainer, pl_module)

    def _read(self, trainer: Trainer) -> None:
        """Reads the last step's check, and raises an error if the step must not count."""
        step = self._unread
        self._unread = None
        if step is None:
            return
        bad_gradient, bad_loss = step.read()
        if _has_scaler(trainer):
            self._in_a_row = self._in_a_row + 1 if bad_gradient or bad_loss else 0
            if self._in_a_row > self.patience:
                _stop(trainer, step, bad_loss)
        elif bad_gradient or (bad_loss and trainer.world_size == 1):
            _stop(trainer, step, bad_loss)
        elif bad_loss:
            self._suspect = step


def _stop(trainer: Trainer, step: _Step, bad_loss: bool) -> NoReturn:
    stopped = f"training stopped at step {step.number}"
    if trainer.world_size > 1 and not bad_loss:
        raise UserError(f"{stopped}: the gradient of all processes is not finite")
    losses = " and ".join(f"{loss.item():.4g}" for loss, _ in step.batches)
    cause = f"the loss is {losses}" if bad_loss else "the gradient is not finite"
    data = trainer.datamodule  # type: ignore[attr-defined]  # set where it is passed to fit
    train = getattr(data, "splits", {}).get("train")
    images = ""
    if train is not None:
        indices = torch.cat([indices for _, indices in step.batches]).tolist()
        names = [f"'{train.name(index % len(train))}'" for index in indices]
        images = f", of the images {listed(names, 8)}"
    raise NonFiniteError(
        f"{stopped}: {cause} in process {trainer.global_rank}{images}; the checkpoints are from"
        " before; try a lower --model.optimizer.lr, under another --name"
    )


def _has_scaler(trainer: Trainer) -> bool:
    plugin = trainer.precision_plugin
    return isinstance(plugin, MixedPrecision) and plugin.scaler is not None


def _copied(flags: Tensor) -> Callable[[], list[bool]] | None:
    """Starts to copy a GPU's flags; the returned function waits for the copy. None on a CPU."""
    if not flags.is_cuda:
        return None
    copy = flags.to("cpu", non_blocking=True)  # torch makes that memory pinned
    event = torch.Event(flags.device)
    event.record()

    def read() -> list[bool]:
        event.synchronize()
        return copy.tolist()

    return read


def _non_finite(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Returns True if a number is infinite or NaN, or too large for its square, bool ()."""
    return ~torch.nn.utils.get_total_norm(tensors).isfinite().to(device)
