"""Settings from a checkpoint, read so that nothing in the file chooses what is imported."""

from collections.abc import Mapping
from inspect import Parameter, isfunction, signature
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

_PLAIN = (bool, int, float, str, type(None))
_NAMING = (str, list, tuple, dict)  # what a parser might import something by
_CONTAINERS = (list, dict, tuple, Union, UnionType)
_INERT = (*_PLAIN, list, dict, tuple, Any, object, ...)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


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
