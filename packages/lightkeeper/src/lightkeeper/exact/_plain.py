"""Plain values: all that a checkpoint holds."""

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
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
_OTHER_SEQUENCES = (str, bytes, bytearray, memoryview)
_CONVERSIONS: tuple[tuple[type | tuple[type, ...], Callable[..., object]], ...] = (
    (str, str.__str__),  # str() of an Enum is its name
    (os.PathLike, os.fspath),
    (np.bool_, bool),
    ((int, np.integer), int),
    ((float, np.floating), float),
)


class MisfitError(ValueError):
    """A value is not what its place requires: the keys and positions that lead to it from outside.

    Args:
        problem: What is wrong, without a subject, as in "must be text, got 3".
        place: The keys and positions, which the message begins with, joined by dots.
    """

    def __init__(self, problem: str, *place: object) -> None:
        where = ".".join(printable(key)[:80] for key in place)
        super().__init__(f"{where} {problem}" if place else problem)
        self.problem = problem
        self.place = place


@contextmanager
def inside(*place: object) -> Iterator[None]:
    """Adds keys or positions in front of the place that a MisfitError of the block names."""
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
        is_same = all(map(is_, [*items, *items.values()], [*value, *value.values()]))
        return value if is_same and type(value) in _DICTS else items
    if isinstance(value, Sequence | set) and not isinstance(value, _OTHER_SEQUENCES):
        parts = [_plain_part(place, part) for place, part in enumerate(value)]
        if type(value) in _LISTS and all(map(is_, parts, value)):
            return value
        return tuple(parts) if isinstance(value, tuple) else parts
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    if type(value) in get_safe_globals():  # its owner lets torch read it
        return value
    raise MisfitError(f"is a {type(value).__name__}")


def _plain_part(key: object, part: object) -> object:
    with inside(key):
        return plain(part)


def split_plain(options: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns options as plain values, and what each one that is none is, such as ``a Linear``."""
    kept = {}
    left_out: dict[str, str] = {}
    for name, value in options.items():
        try:
            kept[name] = plain(value)
        except MisfitError as error:
            left_out[name] = error.problem.removeprefix("is ")
    return kept, left_out
