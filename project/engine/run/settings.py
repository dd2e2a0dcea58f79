"""What a checkpoint names: nothing in the file chooses what is imported, or fills the memory."""

import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from ..errors import UserError, printable

_PLAIN = (bool, int, float, str, NoneType)
_NAMING = (str, list, tuple, dict)  # what a parser might import something by
_CONTAINERS = (list, dict, tuple, Union, UnionType)
_INERT = (*_PLAIN, list, dict, tuple, Any, object, ...)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_LARGEST_ARGUMENT = 2**20
"""The largest depth, width or size; above it, even lists of a constructor's take long."""
_ROOM = 10**7
"""Numbers that a network may have beside a checkpoint's, for what its constructor replaces."""
_OVERHEAD = 1000
"""What each parameter counts beside its numbers."""
_allowed: set[str] = set()


def imported_class(name: str, base: type) -> type | None:
    """Finds a subclass by its name among those imported; of several, the one defined last."""
    wanted = name.rpartition(".")[-1]
    return next((cls for cls in reversed(subclasses(base)[1:]) if cls.__name__ == wanted), None)


def subclasses(base: type) -> list[type]:
    """Returns the class and all that derive from it, each once."""
    derived: list[type] = base.__subclasses__()
    return list(dict.fromkeys([base, *(part for cls in derived for part in subclasses(cls))]))


def plain_options(options: Mapping[str, object], owner: type) -> dict[str, Any]:
    """Keeps the options of a class that are plain settings, of those that a checkpoint remembers.

    Left out is what its constructors do not name, what is more than numbers, text, lists and dicts
    of these, and whatever is meant for a parameter that takes a class or a function: there, a
    parser would import what a text names.
    """
    return {
        name: options[name]
        for name, annotation in _parameters(owner).items()
        if name in options
        and all(isinstance(leaf, _PLAIN) for leaf in _leaves(options[name]))
        and (_is_inert(annotation) or not isinstance(options[name], _NAMING))
    }


def _parameters(owner: type) -> dict[str, object]:
    """Returns the annotations of a constructor's parameters, and of what its ``**kwargs`` go to."""
    annotations: dict[str, object] = {}
    for constructor in [vars(cls)["__init__"] for cls in owner.__mro__ if "__init__" in vars(cls)]:
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


def allow_module(name: str) -> None:
    """Lets checkpoints name networks that a module defines, as the user has named it."""
    _allowed.add(name)


def network_of_file(path: str, arguments: object) -> str:
    """Returns the name of a network in a checkpoint, after a check of dotted paths.

    Imports nothing. A path must lead to a module that the user has named, and what is there be
    defined in one; a class may have moved. Refuses a function with a text among its arguments,
    which might be a place to write to.
    """
    module, _, name = path.rpartition(".")
    if not module or "/" in path:  # a name of a library
        return path
    # getattr would let a lazy module import
    network = vars(sys.modules.get(module, object)).get(name)
    if network is None:
        network = imported_class(name, nn.Module)
        module = getattr(network, "__module__", module)
    function = network.func if isinstance(network, partial) else network
    origin = getattr(function, "__module__", None) or module
    if network is None or not all(_is_allowed(part) for part in (module, origin)):
        raise UserError(
            f"the checkpoint's network is {printable(path)}; give --import {printable(origin)} if"
            f" that is yours, or in Python load_from_checkpoint(…, arch='{printable(path)}')"
        )
    if not isinstance(network, type) and any(isinstance(leaf, str) for leaf in _leaves(arguments)):
        raise UserError(
            f"the checkpoint's network is the function {printable(path)} with a text among its"
            " arguments, which only a class may be given by a file; in Python,"
            " load_from_checkpoint takes arch_args from you"
        )
    return f"{module}.{name}"


def _is_allowed(module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in _allowed)


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

    A parameter is counted before it is initialised, and so before it takes time and memory.
    """
    refusal = UserError(
        "the checkpoint describes a network that is far larger than its weights; it was changed"
    )
    sides = [max(value.shape, default=1) for value in weights.values()]
    numbers = [leaf for leaf in _leaves(arguments) if isinstance(leaf, int)]
    is_sound = max(len(class_names), channels) <= max(sides, default=0)
    if not is_sound or max(numbers, default=0) > _LARGEST_ARGUMENT:
        raise refusal
    left = _ROOM + sum(_OVERHEAD + 2 * value.numel() for value in weights.values())

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter) -> None:
        nonlocal left
        left -= _OVERHEAD + (0 if is_lazy(parameter) else parameter.numel())
        if left < 0:
            raise refusal

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
