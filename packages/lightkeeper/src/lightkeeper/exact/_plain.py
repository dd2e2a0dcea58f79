"""Plain values: all that a checkpoint holds, converted when written and checked when read."""

import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_safe_globals

from ._errors import listed, printable

_LEAVES = {bool, int, float, complex, str, NoneType, torch.dtype, torch.device, torch.Size}
_DICTS = (dict, OrderedDict, Counter)
_LISTS = (list, tuple, set)
_DEEPEST = 100  # containers inside each other
_REPEATS = 10  # of each value in a file, on average
_FEW = 10**5  # values, however often repeated
_DTYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}
_KINDS: dict[object, tuple[str, str, tuple[type, ...]]] = {
    bool: ("true or false", "true or false", (bool,)),
    int: ("a whole number", "whole numbers", (int,)),
    float: ("a number", "numbers", (int, float)),
    str: ("text", "text", (str,)),
    NoneType: ("nothing", "nothing", (NoneType,)),
    Tensor: ("a tensor", "tensors", (Tensor,)),
    **dict.fromkeys([list, tuple, set, Sequence], ("a list", "lists", (list, tuple, set))),
    **dict.fromkeys([dict, Mapping], ("a dict", "dicts", (dict,))),
}
"""Words for one and for several values of an annotation, and their classes."""


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


def _plain_scalar(value: object) -> Any:
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


def _plain_part(key: object, part: object) -> Any:
    try:
        return plain(part)
    except MisfitError as error:
        raise MisfitError(error.problem, key, *error.place) from None


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


def require_fit(value: object, annotation: object) -> None:
    """Requires a value of the type that an annotation names, such as a TypedDict.

    Lists and tuples are alike, and whole numbers fit ``float``. Annotations with classes that no
    plain value is of require nothing.

    Raises:
        MisfitError: The value is of another type.
    """
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, UnionType):
        _require_any(value, annotation)
    elif origin is NotRequired:
        require_fit(value, arguments[0])
    elif not _is_kind(value, origin, arguments):
        raise MisfitError(f"must be {in_words(annotation)}, got {_brief(value)}")
    elif isinstance(value, dict) and is_typeddict(origin):
        _require_fields(value, origin)
    elif isinstance(value, dict) and len(arguments) == 2:
        _require_items(value, arguments)
    elif isinstance(value, list | tuple) and arguments and origin is not Literal:
        is_row = origin is tuple and arguments[-1] is not ...
        for place, part in enumerate(value):
            with inside(place):
                require_fit(part, arguments[min(place, len(arguments) - 1) if is_row else 0])


def _require_any(value: object, annotation: object) -> None:
    """Requires a value of one of several types; of a misfit inside a list, names the place."""
    problem = MisfitError(f"must be {in_words(annotation)}, got {_brief(value)}")
    for choice in get_args(annotation):
        try:
            return require_fit(value, choice)
        except MisfitError as error:
            problem = error if error.place else problem
    raise problem


def _require_fields(value: dict[object, object], fields: Any) -> None:
    for name, annotation in get_type_hints(fields, include_extras=True).items():
        if name in value:
            with inside(name):
                require_fit(value[name], annotation)
        elif name in fields.__required_keys__:
            raise MisfitError("is missing", name)


def _require_items(value: dict[object, object], kinds: tuple[Any, ...]) -> None:
    for key, part in value.items():
        if not _is_kind(key, kinds[0], ()):
            raise MisfitError(f"must have {_KINDS[kinds[0]][1]} as its keys, got {_brief(key)}")
        with inside(key):
            require_fit(part, kinds[1])


def _is_kind(value: object, origin: object, arguments: tuple[object, ...]) -> bool:
    """Returns True for a value of a class, whatever is in it."""
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if is_typeddict(origin):
        return isinstance(value, dict)
    if isinstance(value, bool) and origin in (int, float):
        return False
    if origin in _KINDS:
        return isinstance(value, _KINDS[origin][2])
    for kind in (int, float):
        if isinstance(origin, type) and issubclass(origin, kind):  # as PositiveInt of jsonargparse
            return _is_kind(value, kind, ()) and _is_accepted(value, origin)
    return True


def _is_accepted(value: object, kind: Callable[[Any], object]) -> bool:
    try:
        kind(value)
    except (TypeError, ValueError):
        return False
    return True


def in_words(annotation: object) -> str:
    """Describes the values that an annotation allows, for a message after "must be"."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Literal:
        return listed(map(repr, arguments), word="or")
    if origin in (Union, UnionType):
        return listed(map(in_words, arguments), word="or")
    if origin in _KINDS:
        kind = get_origin(arguments[0]) or arguments[0] if len(arguments) == 1 else None
        return _KINDS[origin][0] + (f" of {_KINDS[kind][1]}" if kind in _KINDS else "")
    return "a dict" if is_typeddict(origin) else f"a {getattr(origin, '__name__', origin)}"


def _brief(value: object) -> str:
    """Describes a value of a file in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and the shape {tuple(value.shape)}"
    if isinstance(value, str | int | float):
        return printable(repr(value[:40] if isinstance(value, str) else value))[:60]
    return next((one for one, _, kinds in _KINDS.values() if isinstance(value, kinds)), "it")


def is_sound(value: object) -> TypeGuard[Tensor]:
    """Returns True for a tensor that has its numbers in memory, of a type to compute with."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not (value.is_meta or value.is_quantized)
        and value.dtype in _DTYPES
        and value.numel() <= value.untyped_storage().nbytes()  # not one number repeated
    )
