"""Checks of weights from a file."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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


def _tensor_problems(name: str, found: Any, like: Tensor) -> list[str]:
    if not isinstance(found, Tensor) or found.layout is not torch.strided or found.is_meta or found.is_quantized:
        return [f"{name} is no plain tensor"]
    if found.shape != like.shape:
        return [f"{name} has the shape {tuple(found.shape)}, not {tuple(like.shape)}"]
    if found.is_floating_point() != like.is_floating_point() or found.is_complex() != like.is_complex():
        return [f"{name} holds {found.dtype}, not {like.dtype}".replace("torch.", "")]
    return [] if found.isfinite().all() else [f"{name} has values that are not finite"]
