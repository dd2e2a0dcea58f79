"""Which parameters decay, and how the learning rate moves."""

import math
from collections.abc import Iterator
from typing import Any, TypedDict

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


def cosine_with_warmup(step: int, *, total_steps: int, warmup_steps: int = 0, lrf: float = 0.0) -> float:
    """A linear warmup, then half a cosine from the base rate down to a fraction of it.

    The cosine is that of Loshchilov and Hutter, 2017, https://arxiv.org/abs/1608.03983.

    Args:
        step: The number of an optimizer step, from 0.
        total_steps: Optimizer steps in the whole run.
        warmup_steps: Optimizer steps of the warmup; the first is taken at ``1 / warmup_steps`` of the base rate.
        lrf: The final learning rate as a fraction of the base rate.

    Returns:
        The fraction of the base rate at which the step is taken.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return lrf + (1 - lrf) * (1 + math.cos(math.pi * min(progress, 1.0))) / 2


class Settings(TypedDict):
    """What a command asked of optimizer and schedule, as plain data.

    Attributes:
        optimizer: The optimizer's class.
        parameters: How many parameters each group has.
        groups: Each group's settings.
        scheduler: The state of the schedule before its first step.
    """

    optimizer: str
    parameters: list[int]
    groups: list[dict[str, Any]]
    scheduler: dict[str, Any]


def apply_changes(optimizer: Optimizer, scheduler: Any, before: Settings, now: Settings) -> None:
    """Changes what a resumed checkpoint restored where the command now asks for something else than it did before.

    What the command did not change stays as it was restored, so the same command continues exactly.

    Args:
        optimizer: With the restored state.
        scheduler: With the restored state; any that torch has.
        before: What was asked for when the checkpoint was made.
        now: What is asked for now.
    """
    for group, old, new in zip(optimizer.param_groups, before["groups"], now["groups"], strict=True):
        changed = {name: value for name, value in new.items() if value != old.get(name)}
        if "lr" in changed:
            ratio = changed.pop("lr") / old["lr"]
            group.update({name: group[name] * ratio for name in ("lr", "initial_lr") if name in group})
        group.update(changed)
    for name, value in now["scheduler"].items():
        if name not in _PROGRESS and value != before["scheduler"].get(name):
            setattr(scheduler, name, value)


_PROGRESS = ("last_epoch", "_step_count", "_last_lr")  # of a scheduler, not its settings
