"""Tensors that each process has for itself, gradients and buffers, as a checkpoint has them."""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ._metric_states import State, cpu_copies, gather
from ._upstream import share_no_buffers


def keeps_gradients(module: LightningModule) -> bool:
    """Returns True if a module decides itself when gradients begin anew."""
    return not module.automatic_optimization or is_overridden("optimizer_zero_grad", module)


def gradients_of(module: LightningModule) -> list[State]:
    """Returns a module's gradients, of each process unless all have the same."""
    return _of_each_process(
        {
            name: parameter.grad.to_dense()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }
    )


def buffers_of(module: LightningModule) -> list[State]:
    """Returns the buffers that a checkpoint has, of each process unless all have the same."""
    saved = module.state_dict().keys()
    return _of_each_process({n: part for n, part in module.named_buffers() if n in saved})


def _of_each_process(tensors: State) -> list[State]:
    own = cpu_copies(tensors)
    digest = blake2b()
    for value in own.values():
        digest.update(bytes_of(value).numpy().data)
    return [own] if len({*gather(digest.digest())}) == 1 else gather(own)


def bytes_of(value: Tensor) -> Tensor:
    """Returns a tensor's bytes, which are also equal where it has NaN."""
    return value.contiguous().flatten().view(torch.uint8)


def restore_gradients(trainer: Trainer, module: LightningModule, saved: Sequence[State]) -> None:
    """Restores the gradients of this process, by the names of parameters."""
    if saved:
        own = saved[trainer.global_rank % len(saved)]
        for name, parameter in module.named_parameters():
            if name in own and own[name].shape == parameter.shape:
                parameter.grad = own[name].to(parameter)


def has_own_buffers(trainer: Trainer) -> bool:
    """Returns True if each process trains with buffers of its own from one step to the next.

    DDP gives them the first one's as a step begins, but not if a module steps by hand, as Lightning
    then has it wait with the gradients.
    """
    wrapper = trainer.strategy.model
    steps_by_hand = not trainer.lightning_module.automatic_optimization
    return isinstance(wrapper, DistributedDataParallel) and (
        steps_by_hand or not wrapper.broadcast_buffers
    )


def restore_buffers(trainer: Trainer, module: LightningModule, saved: Sequence[State]) -> None:
    """Restores the buffers of this process; Lightning has loaded the first one's."""
    if len(saved) == trainer.world_size > 1:
        share_no_buffers(trainer)
        own = saved[trainer.global_rank]
        for name, buffer in module.named_buffers():
            if name in own and own[name].shape == buffer.shape:
                buffer.data.copy_(own[name])
