"""What a checkpoint must be made of: the types of its values, by annotations or an example."""

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import torch
from torch import Tensor

from ..exact._errors import listed, printable
from ..exact._plain import MisfitError, inside

_DTYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}


class _Kind(NamedTuple):
    """Words for one and for several values of an annotation, and their classes."""

    singular: str
    plural: str
    classes: tuple[type, ...]


_KINDS: dict[object, _Kind] = {
    bool: _Kind("true or false", "true or false", (bool,)),
    int: _Kind("a whole number", "whole numbers", (int,)),
    float: _Kind("a number", "numbers", (int, float)),
    str: _Kind("text", "text", (str,)),
    NoneType: _Kind("nothing", "nothing", (NoneType,)),
    Tensor: _Kind("a tensor", "tensors", (Tensor,)),
    **dict.fromkeys([list, tuple, set, Sequence], _Kind("a list", "lists", (list, tuple, set))),
    **dict.fromkeys([dict, Mapping], _Kind("a dict", "dicts", (dict,))),
}


class Rule(NamedTuple):
    """A condition on a value, for ``Annotated``, and its words after "must be"."""

    words: str
    holds: Callable[[Any], bool]


def require_fit(value: object, annotation: object) -> None:
    """Requires a value of the type that an annotation names, such as a TypedDict.

    Lists and tuples are alike, and whole numbers fit ``float``. Annotations of other classes than
    those of plain values require nothing.

    Raises:
        MisfitError: The value is of another type.
    """
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, UnionType):
        _require_any(value, annotation)
    elif origin in (Annotated, NotRequired):
        require_fit(value, arguments[0])
        if origin is Annotated and not arguments[1].holds(value):
            raise MisfitError(f"must be {in_words(annotation)}, got {_brief(value)}")
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


def _require_items(value: dict[object, object], kinds: tuple[object, ...]) -> None:
    for key, part in value.items():
        if not _is_kind(key, kinds[0], ()):
            raise MisfitError(f"must have {_KINDS[kinds[0]].plural} as its keys, got {_brief(key)}")
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
        return isinstance(value, _KINDS[origin].classes)
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
    if origin is Annotated:
        return str(arguments[1].words)
    if origin is Literal:
        return listed(map(repr, arguments), word="or")
    if origin in (Union, UnionType):
        return listed(map(in_words, arguments), word="or")
    if origin in _KINDS:
        kind = get_origin(arguments[0]) or arguments[0] if len(arguments) == 1 else None
        return _KINDS[origin].singular + (f" of {_KINDS[kind].plural}" if kind in _KINDS else "")
    return "a dict" if is_typeddict(origin) else f"a {getattr(origin, '__name__', origin)}"


def _brief(value: object) -> str:
    """Describes a value of a file in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and the shape {tuple(value.shape)}"
    if isinstance(value, str | int | float):
        return printable(repr(value[:40] if isinstance(value, str) else value))[:60]
    return next(
        (kind.singular for kind in _KINDS.values() if isinstance(value, kind.classes)), "it"
    )


def require_like(value: object, example: object) -> None:
    """Requires the structure of an example, such as the state of a new object.

    A dict must have the keys of the example, a list its length, and a tensor its shape, unless the
    example is empty. Numbers are alike; they or text may stand in place of None.

    Raises:
        MisfitError: The value has another structure.
    """
    if isinstance(example, dict | list | tuple):
        require_fit(value, dict if isinstance(example, dict) else list)
        for key, part, like in _pairs(value, example):
            with inside(key):
                require_like(part, like)
    elif isinstance(example, Tensor):
        if not is_sound(value) or value.shape != example.shape:
            shape = tuple(example.shape)
            raise MisfitError(f"must be a tensor of the shape {shape}, got {_brief(value)}")
    elif isinstance(example, str | bool):
        require_fit(value, str if isinstance(example, str) else bool | None)
    elif example is not None or not (is_sound(value) and value.numel() == 1):
        require_fit(value, float | bool | str | None if example is None else float)


def _pairs(value: Any, example: Any) -> list[tuple[object, object, object]]:
    """Returns keys with the parts of a list or dict, and those of an example."""
    if not isinstance(example, dict):
        if example and len(value) != len(example):
            raise MisfitError(f"must have {len(example)} values, got {len(value)}")
        return [(place, *pair) for place, pair in enumerate(zip(value, example, strict=False))]
    if not all(isinstance(key, str) for key in example):  # such as counts by epoch
        return [(key, part, next(iter(example.values()))) for key, part in value.items()]
    if missing := [key for key in example if key not in value]:
        raise MisfitError("is missing", missing[0])
    return [(key, value[key], like) for key, like in example.items()]


def is_sound(value: object) -> TypeGuard[Tensor]:
    """Returns True for a tensor that has its numbers in memory, of a type to compute with."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not (value.is_meta or value.is_quantized)
        and value.dtype in _DTYPES
        and value.numel() <= value.untyped_storage().nbytes()  # not one number repeated
    )
