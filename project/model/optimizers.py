"""Parameter groups of an optimizer, and its fastest implementation."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Keeps weight decay off normalisation layers and biases.

    Decay only hinders these (He et al., 2019, section 3.1, https://arxiv.org/abs/1812.01187).

    Returns:
        Two groups for an optimizer, of the parameters that require gradients: matrices and kernels, which take the
        optimizer's own weight decay, and vectors, which take none.
    """

    def trained(vectors: bool) -> Iterator[nn.Parameter]:
        return (p for p in network.parameters() if p.requires_grad and (p.ndim < 2) == vectors)

    kernels: dict[str, Any] = {"params": list(trained(vectors=False))}
    vectors: dict[str, Any] = {"params": list(trained(vectors=True)), "weight_decay": 0.0}
    return [group for group in (kernels, vectors) if group["params"]]


def fuse_on_cpu(optimizer: Optimizer) -> None:
    """Lets an optimizer take each step in one pass over memory where torch can, unless another way was asked for.

    By default torch makes a pass on a CPU for each operation of the formula. Its groups are told and not its class:
    then Lightning still clips gradients, which it refuses where the class could be undoing a loss scale by itself.

    Args:
        optimizer: Before its first step.
    """
    for group in optimizer.param_groups:
        undecided = group.get("fused", False) is None and not group["foreach"] and not group["differentiable"]
        if undecided and all(parameter.device.type == "cpu" for parameter in group["params"]):
            group["fused"] = True
