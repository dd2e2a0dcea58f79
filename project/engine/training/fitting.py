"""Whether what a checkpoint holds fits what it is restored to; torch's fused kernels do not look before they write."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from ..errors import UserError, printable


def require_fitting_weights(own: Mapping[str, Tensor], found: Any, source: object) -> None:
    """Compares weights with those of a network.

    Args:
        own: The state dict of the network.
        found: The weights from a file.
        source: The file, for the error.

    Raises:
        UserError: A name is missing or unknown, or a tensor has another shape or kind of number or one that is not
            finite; the text names the first.
    """
    for problem in _weight_problems(own, found):
        raise UserError(f"'{source}' does not fit this network: {problem}")


def require_finite(weights: Mapping[str, Tensor], source: object) -> None:
    """Refuses weights that are NaN or infinite.

    Raises:
        UserError: One is; the text names the first.
    """
    for name, value in weights.items():
        if not _is_finite(value):
            raise UserError(f"'{source}' cannot be used: {name} has values that are not finite")


def require_fitting_state(optimizer: Optimizer, state: Any, names: Mapping[Parameter, str], source: object) -> None:
    """Compares the state that an optimizer is about to load with its parameters.

    Args:
        optimizer: With the parameters; its own state does not matter.
        state: The state dict from a file.
        names: What each parameter is called, for the error.
        source: The file, for the error.

    Raises:
        UserError: The groups have other parameters, a setting is no number where it should be, or a tensor has another
            shape or kind of number or one that is not finite; the text names the first.
    """
    for problem in _state_problems(optimizer, state, names):
        raise UserError(f"'{source}' does not fit this optimizer: {problem}")


def require_fitting_values(own: Any, found: Any, what: str, source: object) -> None:
    """Compares plain values from a file with those in whose place they are to come.

    Args:
        own: Dicts and lists of numbers, truth values and texts; what is something else fits anything.
        found: The values from a file; further names in it do not matter.
        what: What they are, for the error.
        source: The file, for the error.

    Raises:
        UserError: A name is missing, a list has another length, or a value is of another kind or not finite; the text names
            the first.
    """
    for problem in _value_problems(own, found, what):
        raise UserError(f"'{source}' cannot be resumed from: {problem}")


def _value_problems(own: Any, found: Any, name: str) -> Iterator[str]:
    if isinstance(own, Mapping):
        missing = [key for key in own if not (isinstance(found, Mapping) and key in found)]
        yield from (f"{name} has no {key}" for key in missing)
        for key in own.keys() - missing:
            yield from _value_problems(own[key], found[key], f"{key} of {name}")
    elif isinstance(own, list):
        if not (isinstance(found, list) and len(found) == len(own)):
            yield f"{name} is no list of {len(own)}"
            return
        for value, other in zip(own, found, strict=True):
            yield from _value_problems(value, other, name)
    elif type(found) is not type(own) if isinstance(own, bool | str) else _is_odd(found, own):
        yield f"{name} is '{printable(found)}'"


def _weight_problems(own: Mapping[str, Tensor], found: Any) -> Iterator[str]:
    if not isinstance(found, Mapping):
        yield "it has no weights"
        return
    yield from (f"{name} is missing" for name in own if name not in found)
    yield from (f"it has no {printable(name)}" for name in found if name not in own)
    for name, value in own.items():
        yield from _tensor_problems(name, found[name], value, [tuple(value.shape)])


def _state_problems(optimizer: Optimizer, state: Any, names: Mapping[Parameter, str]) -> Iterator[str]:
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    states = state.get("state") if isinstance(state, Mapping) else None
    own = [len(group["params"]) for group in optimizer.param_groups]
    if not (isinstance(groups, list) and isinstance(states, Mapping) and [*map(_count, groups)] == own):
        yield f"it is not that of {' + '.join(map(str, own))} parameters"
        return
    indices = {index for group in groups for index in group["params"]}
    yield from (
        f"it has a state of no parameter, {index}"
        for index in states
        if isinstance(index, int) and index not in indices
    )
    for saved, group in zip(groups, optimizer.param_groups, strict=True):
        yield from (f"its {name} is missing or no number" for name in group if _is_odd(saved.get(name), group[name]))
        for index, parameter in zip(saved["params"], group["params"], strict=True):
            what = names.get(parameter, f"parameter {index}")
            values = states.get(index, {})
            if not isinstance(values, Mapping):
                yield f"{what} has no state that can be read"
                continue
            for name, value in values.items():
                shapes = _shapes(str(name), tuple(parameter.shape), bool(group.get("fused")))
                like = value if isinstance(value, Tensor) and name == "step" else parameter
                yield from _tensor_problems(f"{printable(name)} of {what}", value, like, shapes, numbers=True)


def _count(group: Any) -> int:
    parameters = group.get("params") if isinstance(group, Mapping) else None
    hashable = isinstance(parameters, list) and all(isinstance(index, int) for index in parameters)
    return len(parameters) if hashable else -1  # type: ignore[arg-type]  # it is a list


def _is_odd(saved: Any, own: Any) -> bool:
    """Whether a setting that is a number here is not a finite one there."""
    numbers = isinstance(own, int | float) and math.isfinite(own)  # a bool is one too
    return numbers and not (isinstance(saved, int | float | Tensor) and _is_finite(torch.as_tensor(saved)))


def _shapes(name: str, shape: tuple[int, ...], fused: bool) -> list[tuple[int, ...]]:
    """The shapes that a tensor of an optimizer's state may have: the parameter's; a single number where one counts."""
    if name == "step":
        return [(), (1,)]
    if fused:
        return [shape]
    means = [(*shape[:axis], 1, *shape[axis + 1 :]) for axis in range(len(shape))]  # as Adafactor keeps them
    return [shape, (), (1,), *means]


def _tensor_problems(
    name: str, found: Any, like: Tensor, shapes: list[tuple[int, ...]], numbers: bool = False
) -> Iterator[str]:
    if numbers and (found is None or isinstance(found, bool | int | float)):
        if isinstance(found, float) and not math.isfinite(found):
            yield f"{name} is {found}"
    elif not isinstance(found, Tensor) or found.layout is not torch.strided or found.is_meta or found.is_quantized:
        yield f"{name} is no plain tensor"
    elif tuple(found.shape) not in shapes:
        yield f"{name} has the shape {tuple(found.shape)}, not {shapes[0]}"
    elif found.is_floating_point() != like.is_floating_point() or found.is_complex() != like.is_complex():
        yield f"{name} holds {_dtype(found)}, not {_dtype(like)}"
    elif not _is_finite(found):
        yield f"{name} has values that are not finite"


def _is_finite(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or bool(value.isfinite().all())


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
