"""Building an optimizer: its parameter groups, learning rates and fused implementation."""

import math
from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, cast

from lightkeeper.exact import UserError
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import nn
from torch.optim import Optimizer, SparseAdam

from project.model.freezing import blocks

Decay = Literal["weights", "not_norm", "all"]
"""Which parameters decay: matrices and kernels; all but those of normalisation layers; or all."""

LR_SCALE = "lr_scale"
"""The factor of a parameter group's learning rate, by timm's name for it."""

_NORMALIZATION = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def build_optimizer(
    make: OptimizerCallable,
    model: LightningModule,
    layer_decay: float = 1.0,
    decay: Decay = "weights",
) -> Optimizer:
    """Builds the optimizer of all of a model's parameters that require gradients."""
    if not 0 < layer_decay <= 1:
        raise UserError(f"--model.layer_decay must be above 0, at most 1, got {layer_decay}")
    network = cast(nn.Module, model.network)
    of_network = set(network.parameters())
    others = [parameter for parameter in model.parameters() if parameter not in of_network]
    exempt = {*_exempt(network, others, decay)}
    optimizer = make(_parameter_groups(network, layer_decay, others, exempt))
    if isinstance(optimizer, SparseAdam):
        raise UserError("--model.optimizer SparseAdam takes sparse gradients alone; use Adam")
    for group in optimizer.param_groups:
        if group["lr"] is None or not math.isfinite(group["lr"]):
            raise UserError(f"--model.optimizer.lr must be a finite number, got {group['lr']}")
        group["lr"] *= group.get(LR_SCALE, 1.0)
    fuse(optimizer)
    return optimizer


def _parameter_groups(
    network: nn.Module,
    layer_decay: float,
    others: Sequence[nn.Parameter],
    exempt: Container[nn.Parameter],
) -> list[dict[str, object]]:
    """Groups the parameters that require gradients: those with weight decay, and those without.

    With ``layer_decay`` below 1, each block has two groups with its ``lr_scale``, the head's first
    (Clark et al., 2020, https://arxiv.org/abs/2003.10555). ``others`` are parameters outside of the
    network, trained as the head is.
    """
    named = dict(network.named_parameters())
    groups: list[dict[str, object]] = []
    layers = [*reversed(blocks(network))] if layer_decay < 1 else [list(named)]
    for depth, names in enumerate(layers):
        members = [*(named[name] for name in names), *(others if depth == 0 else ())]
        trained = [parameter for parameter in members if parameter.requires_grad]
        decaying = [parameter for parameter in trained if parameter not in exempt]
        constant = [parameter for parameter in trained if parameter in exempt]
        scale = {LR_SCALE: layer_decay**depth} if layer_decay < 1 else {}
        groups.append({"params": decaying, **scale})
        groups.append({"params": constant, "weight_decay": 0.0, **scale})
    return [group for group in groups if group["params"]]


def _exempt(
    network: nn.Module, others: Sequence[nn.Parameter], decay: Decay
) -> Iterator[nn.Parameter]:
    """Yields the parameters without weight decay.

    With ``weights``, these are biases and the vectors of normalisation layers (He et al., 2019,
    section 3.1, https://arxiv.org/abs/1812.01187), and those that match the names or patterns in
    ``no_weight_decay()`` of a timm network.
    """
    if decay == "weights":
        patterns: Any = getattr(network, "no_weight_decay", tuple)()
        for name, parameter in network.named_parameters():
            if parameter.ndim < 2 or any(fnmatchcase(name, pattern) for pattern in patterns):
                yield parameter
        yield from (parameter for parameter in others if parameter.ndim < 2)
    elif decay == "not_norm":
        for module in network.modules():
            if isinstance(module, _NORMALIZATION):
                yield from module.parameters()


def fuse(optimizer: Optimizer) -> None:
    """Fuses each step into one pass over memory where torch can, unless the user says otherwise.

    Sets ``fused`` in the parameter groups: given to the constructor, Lightning would refuse to clip
    gradients.
    """
    for group in optimizer.param_groups:
        undecided = (
            group.get("fused", False) is None
            and not group["foreach"]
            and not group["differentiable"]
        )
        if undecided and all(
            parameter.device.type in ("cpu", "cuda") for parameter in group["params"]
        ):
            group["fused"] = True
