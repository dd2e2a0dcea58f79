"""Plain values: all that a checkpoint holds, converted when written and checked when read."""

import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_safe_globals

from ._errors import printable

_LEAVES = {bool, int, float, complex, str, NoneType, torch.dtype, torch.device, torch.Size}
_DICTS = (dict, OrderedDict, Counter)
_LISTS = (list, tuple, set)
_DEEPEST = 100  # containers inside each other
_REPEATS = 10  # of each value in a file, on average
_FEW = 10**5  # values, however often repeated


class MisfitError(ValueError):
    """A value is not what its place demands; the message begins with the place."""

    def __init__(self, problem: str, *place: object) -> None:
        where = ".".join(printable(key)[:80] for key in place)
        super().__init__(f"{where} {problem}" if place else problem)
        self.problem = problem
        self.place = place


@contextmanager
def inside(*place: object) -> Iterator[None]:
    """Adds the place of a part to the error about it."""
    try:
        yield
    except MisfitError as error:
        raise MisfitError(error.problem, *place, *error.place) from None


def plain(value: object) -> Any:
    """Converts a value to what ``torch.load(..., weights_only=True)`` reads.

    NumPy's numbers become Python's; subclasses of numbers, text, lists and dicts become these, and
    paths text. What need not change stays the object that it is.

    Raises:
        MisfitError: Something in it is neither a number, text, a tensor, a list nor a dict.
    """
    if type(value) in _LEAVES or isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        items = {plain(key): _plain_part(key, part) for key, part in value.items()}
        pairs = zip(items.items(), value.items(), strict=True)
        is_same = all(key is old and part is was for (key, part), (old, was) in pairs)
        return value if is_same and type(value) in _DICTS else items
    if isinstance(value, str):
        return str.__str__(value)  # str() of an Enum is its name
    if isinstance(value, Sequence | set) and not isinstance(value, bytes | bytearray | memoryview):
        parts = [_plain_part(place, part) for place, part in enumerate(value)]
        is_same = all(part is was for part, was in zip(parts, value, strict=True))
        if is_same and type(value) in _LISTS:
            return value
        return tuple(parts) if isinstance(value, tuple) else parts
    return _plain_scalar(value)


def _plain_scalar(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if type(value) in get_safe_globals():  # its owner lets torch read it
        return value
    raise MisfitError(f"is a {type(value).__name__}")


def _plain_part(key: object, part: object) -> object:
    try:
        return plain(part)
    except MisfitError as error:
        raise MisfitError(error.problem, key, *error.place) from None


def split_plain(options: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns options as plain values, and of those that are none, what they are, by name."""
    kept = {}
    left_out: dict[str, str] = {}
    for name, value in options.items():
        try:
            kept[name] = plain(value)
        except MisfitError as error:
            left_out[name] = error.problem.removeprefix("is ")
    return kept, left_out


def require_tree(content: object) -> None:
    """Requires values that can be walked in about the time in which they were read.

    A list that holds another ten times, which holds another ten times, and so on, takes few bytes
    in a file, and for ever to walk.

    Raises:
        MisfitError: A list or dict is in itself, far inside others, or repeated too often.
    """
    sizes: dict[int, int] = {}  # of lists and dicts, with all that is in them
    path: dict[int, None] = {}
    stored = 0
    stack = [content]
    while stack:
        value = stack[-1]
        parts = _containers_in(value)
        if id(value) in sizes:
            stack.pop()
        elif id(value) in path:  # its parts have been looked at
            sizes[id(value)] = _length(value) + sum(sizes[id(part)] for part in parts)
            del path[id(value)]
            stack.pop()
        else:
            path[id(value)] = None
            stored += _length(value)
            if len(path) > _DEEPEST or any(id(part) in path for part in parts):
                raise MisfitError("it has lists or dicts too deep inside each other")
            stack += [part for part in parts if id(part) not in sizes]
    if sizes[id(content)] > max(_FEW, _REPEATS * stored):
        raise MisfitError("it repeats the same lists or dicts too often")


def _containers_in(value: object) -> list[object]:
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, list | tuple):
        return []
    return [part for part in parts if isinstance(part, list | tuple | dict)]


def _length(value: object) -> int:
    return 1 + (len(value) if isinstance(value, list | tuple | dict) else 0)
