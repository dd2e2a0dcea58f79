"""Settings and networks that a checkpoint names: nothing in the file chooses what is imported, or fills the memory."""

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
    """Finds a subclass by its name, without its module, among those imported already; of several, the one defined last."""
    wanted = name.rpartition(".")[-1]
    return next((cls for cls in reversed(subclasses(base)[1:]) if cls.__name__ == wanted), None)


def subclasses(base: type) -> list[type]:
    """Returns the class and all that derive from it, each once."""
    derived: list[type] = base.__subclasses__()
    return list(dict.fromkeys([base, *(found for cls in derived for found in subclasses(cls))]))


def plain_options(options: Any, owner: type) -> dict[str, Any]:
    """Keeps the options of a class that are plain settings, of those that a checkpoint remembers.

    Left out is what its constructors do not name, what is more than numbers, text, lists and dicts of these, and
    whatever is meant for a parameter that takes a class or a function: there, a parser would import what a text names.
    """
    inert = {name: _is_inert(annotation) for name, annotation in _parameters(owner).items()}
    found = options.items() if isinstance(options, Mapping) else ()
    known = [(name, value) for name, value in found if name in inert and is_plain(value)]
    return {name: value for name, value in known if inert[name] or not isinstance(value, _NAMING)}


def _parameters(owner: type) -> dict[str, Any]:
    """Annotations of the parameters of a class's constructor, and of those that its ``**kwargs`` go to."""
    found: dict[str, Any] = {}
    for cls in owner.__mro__:
        constructor = vars(cls).get("__init__")
        if isfunction(constructor):
            hints = get_type_hints(constructor)
            parameters = [*signature(constructor).parameters.values()][1:]  # without self
            named = [parameter.name for parameter in parameters if parameter.kind in _NAMED]
            found = {name: hints.get(name, Any) for name in named} | found
            if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
                break
    return found


def _is_inert(annotation: Any) -> bool:
    """Returns True if a parser takes a text for such a parameter as nothing but a text."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if is_typeddict(annotation):
        parts = tuple(get_type_hints(annotation).values())
    elif origin not in _CONTAINERS:
        return origin is Literal or annotation in _INERT
    return all(_is_inert(part) for part in parts)


def is_plain(value: Any) -> bool:
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


def network_of_file(path: str, arguments: Any) -> str:
    """Returns the name of a network in a checkpoint, after a check of dotted paths; imports nothing.

    A path must lead to a module that the user has named; a class may have moved. Refuses a function
    with a text among its arguments, which might be a place to write to.
    """
    module, _, name = path.rpartition(".")
    if not module or "/" in path:  # a name of a library
        return path
    found = vars(sys.modules.get(module, object)).get(
        name
    )  # getattr would let a lazy module import
    if not _is_allowed(found) and _is_allowed(moved := imported_class(name, nn.Module)):
        found, module = moved, _module_of(moved)
    if not _is_allowed(found):
        named = printable(_module_of(found) or module)
        raise UserError(
            f"the checkpoint's network is {printable(path)}; give --import {named} if that is yours, or in"
            f" Python load_from_checkpoint(…, arch='{printable(path)}')"
        )
    if not isinstance(found, type) and any(isinstance(leaf, str) for leaf in _leaves(arguments)):
        raise UserError(
            f"the checkpoint's network is the function {printable(path)} with a text among its arguments, which only a"
            " class may be given by a file; in Python, load_from_checkpoint takes arch_args from you"
        )
    return f"{module}.{name}"


def _is_allowed(found: Any) -> bool:
    """Returns True if a module that the user has named defines it; what that module has imported does not count."""
    return any(f"{_module_of(found)}.".startswith(f"{name}.") for name in _allowed)


def _module_of(found: Any) -> str:
    return getattr(found.func if isinstance(found, partial) else found, "__module__", None) or ""


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


@contextmanager
def limited_by(
    weights: Mapping[str, Tensor], class_names: Sized, arguments: Any = None, channels: int = 0
) -> Iterator[None]:
    """Stops a model from being built that is far larger than a checkpoint's weights, before it takes time and memory.

    What modules register is counted before it is initialised, with room for what a constructor replaces.
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

    def count(_module: nn.Module, _name: str, part: Any) -> None:
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
