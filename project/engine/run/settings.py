"""What a checkpoint names: nothing in the file chooses what is imported, or fills the memory."""

import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, isfunction, signature
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from ..errors import UserError, printable

_PLAIN = (bool, int, float, str, type(None))
_NAMING = (str, list, tuple, dict)  # what a parser might import something by
_CONTAINERS = (list, dict, tuple, Union, UnionType)
_INERT = (*_PLAIN, list, dict, tuple, Any, object, ...)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_LARGEST_ARGUMENT = (
    2**16
)  # of depths, widths and sizes, above which even lists of a constructor's take long
_allowed: set[str] = set()


def imported_class(name: str, base: type) -> type | None:
    """Finds a subclass by its name among those imported; of several, the one defined last."""
    wanted = name.rpartition(".")[-1]
    return next((cls for cls in reversed(subclasses(base)[1:]) if cls.__name__ == wanted), None)


def subclasses(base: type) -> list[type]:
    """Returns the class and all that derive from it, each once."""
    derived: list[type] = base.__subclasses__()
    return list(dict.fromkeys([base, *(part for cls in derived for part in subclasses(cls))]))


def plain_options(options: object, owner: type) -> dict[str, Any]:
    """Keeps the options of a class that are plain settings, of those that a checkpoint remembers.

    Left out is what its constructors do not name, what is more than numbers, text, lists and dicts
    of these, and whatever is meant for a parameter that takes a class or a function: there, a
    parser would import what a text names.
    """
    saved = options if isinstance(options, Mapping) else {}
    return {
        name: saved[name]
        for name, annotation in _parameters(owner).items()
        if name in saved
        and is_plain(saved[name])
        and (_is_inert(annotation) or not isinstance(saved[name], _NAMING))
    }


def _parameters(owner: type) -> dict[str, object]:
    """Returns the annotations of a constructor's parameters, and of what its ``**kwargs`` go to."""
    annotations: dict[str, object] = {}
    for cls in owner.__mro__:
        constructor = vars(cls).get("__init__")
        if isfunction(constructor):
            hints = get_type_hints(constructor)
            parameters = [*signature(constructor).parameters.values()][1:]  # without self
            named = [parameter.name for parameter in parameters if parameter.kind in _NAMED]
            annotations = {name: hints.get(name, Any) for name in named} | annotations
            if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
                break
    return annotations


def _is_inert(annotation: object) -> bool:
    """Returns True if a parser takes a text for such a parameter as nothing but a text."""
    if is_typeddict(annotation):
        return all(_is_inert(part) for part in get_type_hints(annotation).values())
    if get_origin(annotation) in _CONTAINERS:
        return all(_is_inert(part) for part in get_args(annotation))
    return get_origin(annotation) is Literal or annotation in _INERT


def is_plain(value: object) -> bool:
    """Returns True for numbers, text, and lists and dicts of these."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return isinstance(value, _PLAIN)


def allow_module(name: str) -> None:
    """Lets checkpoints name networks that a module defines, as the user has named it."""
    _allowed.add(name)


def allow_network(path: str) -> None:
    """Lets checkpoints name networks of the module of one that the user has named by its path."""
    module, _, name = path.rpartition(".")
    network = vars(sys.modules.get(module, object)).get(name)
    if network is not None:
        allow_module(network.__module__ if isinstance(network, type) else module)


def network_of_file(path: str, arguments: object) -> str:
    """Returns the name of a network in a checkpoint, after a check of dotted paths.

    Imports nothing. A path must lead to a module that the user has named; a class may have moved.
    Refuses a function with a text among its arguments, which might be a place to write to.
    """
    module, _, name = path.rpartition(".")
    if not module or "/" in path:  # a name of a library
        return path
    # getattr would let a lazy module import
    network = vars(sys.modules.get(module, object)).get(name)
    if not _is_allowed(network):
        moved = imported_class(name, nn.Module)
        if not _is_allowed(moved):
            wanted = printable(_module_of(network) or module)
            raise UserError(
                f"the checkpoint's network is {printable(path)}; give --import {wanted} if that is"
                f" yours, or in Python load_from_checkpoint(…, arch='{printable(path)}')"
            )
        return f"{_module_of(moved)}.{name}"
    if not isinstance(network, type) and any(isinstance(leaf, str) for leaf in _leaves(arguments)):
        raise UserError(
            f"the checkpoint's network is the function {printable(path)} with a text among its"
            " arguments, which only a class may be given by a file; in Python,"
            " load_from_checkpoint takes arch_args from you"
        )
    return path


def _is_allowed(part: object) -> bool:
    """Returns True if a module that the user has named defines a class or function itself."""
    return any(f"{_module_of(part)}.".startswith(f"{name}.") for name in _allowed)


def _module_of(part: object) -> str:
    return getattr(part.func if isinstance(part, partial) else part, "__module__", None) or ""


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


@contextmanager
def limited_by(
    weights: Mapping[str, Tensor], class_names: Sized, arguments: object = None, channels: int = 0
) -> Iterator[None]:
    """Stops a model from being built that is far larger than a checkpoint's weights.

    What modules register is counted before it is initialised, and so before it takes time and
    memory, with room for what a constructor replaces.
    """
    refusal = UserError(
        "the checkpoint describes a network that is far larger than its weights; it was changed"
    )
    greatest_side = max((max(value.shape, default=1) for value in weights.values()), default=0)
    largest = max((leaf for leaf in _leaves(arguments) if isinstance(leaf, int | float)), default=0)
    if max(len(class_names), channels) > greatest_side or largest > _LARGEST_ARGUMENT:
        raise refusal
    parts_left = 1000 + 20 * len(weights)
    numbers_left = 10**7 + 2 * sum(value.numel() for value in weights.values())

    def count(_module: nn.Module, _name: str, part: object) -> None:
        nonlocal parts_left, numbers_left
        parts_left -= 1
        numbers_left -= part.numel() if isinstance(part, Tensor) and not is_lazy(part) else 0
        if parts_left < 0 or numbers_left < 0:
            raise refusal

    hooks = [
        torch_module.register_module_parameter_registration_hook(count),
        torch_module.register_module_buffer_registration_hook(count),
        torch_module.register_module_module_registration_hook(count),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
