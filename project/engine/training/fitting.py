"""Checks that weights, an optimizer's state and settings from a file fit this run."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import UserError, printable


def require_fitting_weights(own: Mapping[str, Tensor], found: Any, source: object) -> None:
    """Compares weights from a file with the state dict of a network; the UserError names the first that does not fit."""
    if not isinstance(found, Mapping):
        problems = ["it has no weights"]
    else:
        problems = [f"{name} is missing" for name in own if name not in found]
        problems += [f"it has no {printable(name)}" for name in found if name not in own]
    for name in own if not problems else ():
        problems += _tensor_problems(name, found[name], own[name])
    if problems:
        raise UserError(f"'{source}' does not fit this network: {problems[0]}")


def require_finite(weights: Mapping[str, Tensor], source: object) -> None:
    """Refuses weights that are NaN or infinite."""
    for name, value in weights.items():
        if not value.isfinite().all():
            raise UserError(f"'{source}' cannot be used: {name} has values that are not finite")


def require_same_settings(before: Mapping[str, Any], now: dict[str, dict[str, Any]], source: object) -> None:
    """Compares the settings in a checkpoint with those of the run that is to resume; the UserError names the first."""
    for part, settings in now.items():
        for name, value in settings.items():
            if (old := before[part].get(name)) != value:
                option = f"--model.{part}" if name == "name" else f"--model.{part}'s {name}"
                raise UserError(
                    f"this run was trained with {option} {printable(old)}, which cannot change when it resumes, got {value};"
                    f" to change it, start another: --model.weights {source} --name another"
                )


def require_fitting_state(optimizer: Optimizer, state: Mapping[str, Any], source: object) -> None:
    """Refuses an optimizer's state that is of other parameters."""
    groups, saved_groups = optimizer.param_groups, state["param_groups"]
    own, saved = ([len(group["params"]) for group in found] for found in (groups, saved_groups))
    if own != saved:
        raise UserError(
            f"'{source}' does not fit this optimizer: it trained {sum(saved)} parameters, and now there are {sum(own)};"
            " --model.freeze cannot change when a run resumes"
        )
    for group, saved_group in zip(groups, saved_groups, strict=True):
        if not saved_group.get("fused"):
            continue  # torch itself notices other shapes; fused, it writes where the tensor ends
        for parameter, index in zip(group["params"], saved_group["params"], strict=True):
            for name, value in state["state"].get(index, {}).items():
                if name != "step" and value is not None and value.shape != parameter.shape:
                    what = f"{printable(name)} of parameter {index} has the shape {tuple(value.shape)}"
                    raise UserError(f"'{source}' does not fit this optimizer: {what}, not {tuple(parameter.shape)}")


def _tensor_problems(name: str, found: Any, like: Tensor) -> list[str]:
    if not isinstance(found, Tensor) or found.layout is not torch.strided or found.is_meta or found.is_quantized:
        return [f"{name} is no plain tensor"]
    if found.shape != like.shape:
        return [f"{name} has the shape {tuple(found.shape)}, not {tuple(like.shape)}"]
    if found.is_floating_point() != like.is_floating_point() or found.is_complex() != like.is_complex():
        return [f"{name} holds {found.dtype}, not {like.dtype}".replace("torch.", "")]
    return [] if found.isfinite().all() else [f"{name} has values that are not finite"]
