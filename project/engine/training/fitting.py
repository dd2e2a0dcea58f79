"""Checks of weights and optimizer states from a file; torch's fused kernels write without looking at shapes."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
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
        problems += _tensor_problems(name, found[name], own[name], [tuple(own[name].shape)])
    if problems:
        raise UserError(f"'{source}' does not fit this network: {problems[0]}")


def require_finite(weights: Mapping[str, Tensor], source: object) -> None:
    """Refuses weights that are NaN or infinite."""
    for name, value in weights.items():
        if not _is_finite(value):
            raise UserError(f"'{source}' cannot be used: {name} has values that are not finite")


def require_fitting_state(optimizer: Optimizer, state: Any, names: Mapping[Parameter, str], source: object) -> None:
    """Compares an optimizer's state from a file with its parameters; the UserError names the first that does not fit."""
    for problem in _state_problems(optimizer, state, names):
        raise UserError(f"'{source}' does not fit this optimizer: {problem}")


def _state_problems(optimizer: Optimizer, state: Any, names: Mapping[Parameter, str]) -> list[str]:
    own = [list(group["params"]) for group in optimizer.param_groups]
    try:
        indices = [list(group["params"]) for group in state["param_groups"]]
        values = {index: dict(found.items()) for index, found in state["state"].items()}
        fits = [*map(len, indices)] == [*map(len, own)] and values.keys() <= {index for ids in indices for index in ids}
    except (AttributeError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        return [f"it is not that of {' + '.join(str(len(group)) for group in own)} parameters"]
    problems = []
    for saved, group, ids in zip(state["param_groups"], optimizer.param_groups, indices, strict=True):
        problems += [f"its {name} is missing or no number" for name in group if _is_odd(saved.get(name), group[name])]
        for index, parameter in zip(ids, group["params"], strict=True):
            for name, value in values.get(index, {}).items():
                shapes = _shapes(str(name), tuple(parameter.shape), bool(group.get("fused")))
                like = value if isinstance(value, Tensor) and name == "step" else parameter
                what = f"{printable(name)} of {names.get(parameter, f'parameter {index}')}"
                if not (isinstance(value, bool | int | None) or (isinstance(value, float) and math.isfinite(value))):
                    problems += _tensor_problems(what, value, like, shapes)
    return problems


def _is_odd(saved: Any, own: Any) -> bool:
    """Returns True if a setting that is a number here is no finite number in the file."""
    numbers = isinstance(own, int | float) and math.isfinite(own)  # a bool is one too
    return numbers and not (isinstance(saved, int | float | Tensor) and _is_finite(torch.as_tensor(saved)))


def _shapes(name: str, shape: tuple[int, ...], fused: bool) -> list[tuple[int, ...]]:
    """Returns the shapes that a tensor of an optimizer's state may have: the parameter's; a single number where one counts."""
    if name == "step":
        return [(), (1,)]
    if fused:
        return [shape]
    means = [(*shape[:axis], 1, *shape[axis + 1 :]) for axis in range(len(shape))]  # as Adafactor keeps them
    return [shape, (), (1,), *means]


def _tensor_problems(name: str, found: Any, like: Tensor, shapes: list[tuple[int, ...]]) -> list[str]:
    if not isinstance(found, Tensor) or found.layout is not torch.strided or found.is_meta or found.is_quantized:
        return [f"{name} is no plain tensor"]
    if tuple(found.shape) not in shapes:
        return [f"{name} has the shape {tuple(found.shape)}, not {shapes[0]}"]
    if found.is_floating_point() != like.is_floating_point() or found.is_complex() != like.is_complex():
        return [f"{name} holds {found.dtype}, not {like.dtype}".replace("torch.", "")]
    return [] if _is_finite(found) else [f"{name} has values that are not finite"]


def _is_finite(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or bool(value.isfinite().all())
