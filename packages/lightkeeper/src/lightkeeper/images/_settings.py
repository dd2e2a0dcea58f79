"""What a checkpoint names: nothing in the file chooses what is imported, or fills the memory."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import Parameter, signature
from traceback import walk_tb
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy

from ..exact._errors import UserError, listed, printable
from ..exact._plain import inside, split_plain
from ._preprocessing import sides_of
from ._schema import require_fit
from ._upstream import limited_tensors

_LIBRARIES = {
    *("torch", "torchvision", "torchmetrics", "timm", "lightning", "numpy", "PIL"),
    *sys.stdlib_module_names,
}
_REFUSALS = (ArithmeticError, AssertionError, LookupError, TypeError, ValueError)
_PLAIN = (bool, int, float, str, NoneType)
_IMPORTABLE = (str, list, tuple, set, dict)  # values by which a parser might import something
_CONTAINERS = (list, dict, tuple, set, Sequence, Mapping, Union, UnionType)
_INERT = (*_PLAIN, list, dict, tuple, set, Sequence, Mapping, Any, object, ...)
_KEYWORDS = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_LARGEST_ARGUMENT = 2**20
"""The largest depth, width or size; above it, even lists of a constructor's take long."""
_ROOM = 10**7
"""Numbers that a network may have beside a checkpoint's, for what its constructor replaces."""
_OVERHEAD = 1000
"""What each parameter counts beside its numbers."""
_CHANNELS = 1024
"""Channels of a network's largest output for two images, as wide as these."""
_allowed: set[str] = set()


def imported_class(name: str, base: type) -> type | None:
    """Finds an imported subclass of ``base`` by its name, with or without its module in front.

    Prefers the module in front, then modules that the user has named. Of several classes that are
    left, the one defined last is found, if they are of one module or it derives from all others.

    Raises:
        UserError: Several modules have unrelated classes of that name.
    """
    module, _, wanted = name.rpartition(".")
    classes = [cls for cls in subclasses(base)[1:] if cls.__name__ == wanted]
    classes = [cls for cls in classes if cls.__module__ == module] or classes
    classes = [cls for cls in classes if _is_allowed(cls.__module__)] or classes
    # a program's own module may have another name, too
    modules = {cls.__module__ for cls in classes} - {"__main__", "__mp_main__"}
    if len(modules) > 1 and not all(issubclass(classes[-1], other) for other in classes):
        raise UserError(
            f"the checkpoint's class {printable(wanted)} is in {listed(sorted(modules))}; import one"
            " of these alone"
        )
    return classes[-1] if classes else None


def subclasses(base: type) -> list[type]:
    """Returns the class and all that derive from it, each once."""
    derived: list[type] = base.__subclasses__()
    return list(dict.fromkeys([base, *(part for cls in derived for part in subclasses(cls))]))


def plain_options(options: Mapping[str, object], owner: type) -> dict[str, Any]:
    """Keeps the options of a class that a file may decide, of those that a checkpoint remembers.

    Left out is what its constructors do not name, and text, lists and dicts for a parameter that
    takes a class or a function: there, a parser would import what a text names.

    Raises:
        MisfitError: An option is of another type than its parameter.
    """
    kept = {}
    for name, parameter in parameters_of(owner).items():
        if name not in options:
            continue
        value = options[name]
        if _is_inert(parameter.annotation):
            if not _is_default(value, parameter):  # which annotations often leave out
                with inside(name):
                    require_fit(value, parameter.annotation)
            kept[name] = value
        elif not isinstance(value, _IMPORTABLE):
            kept[name] = value
    return kept


def require_arguments(owner: type, options: Mapping[str, object]) -> None:
    """Requires what a constructor has no default for, which a file may lack or must not decide."""
    needed = [
        x.name
        for x in signature(owner).parameters.values()
        if x.default is Parameter.empty and x.kind in _KEYWORDS
    ]
    if missing := [name for name in needed if name not in options]:
        raise UserError(
            f"the checkpoint cannot say what {listed(missing)} of {owner.__name__} is; in Python,"
            " load_from_checkpoint takes it from you"
        )


def remembered(options: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    """Returns options as plain values, which a checkpoint can hold, and the names of the others.

    Names that begin with an underscore are Lightning's, for what its own reading would import.
    """
    own = {name: value for name, value in options.items() if not name.startswith("_")}
    kept, others = split_plain(own)
    return kept, [f"{name} ({kind})" for name, kind in others.items()]


def parameters_of(owner: type) -> dict[str, Parameter]:
    """Returns a constructor's parameters, and those that its ``**kwargs`` go to."""
    known: dict[str, Parameter] = {}
    for constructor in [vars(cls)["__init__"] for cls in owner.__mro__ if "__init__" in vars(cls)]:
        hints = get_type_hints(constructor)
        parameters = [*signature(constructor).parameters.values()][1:]  # without self
        named = [parameter for parameter in parameters if parameter.kind in _KEYWORDS]
        known = {x.name: x.replace(annotation=hints.get(x.name, Any)) for x in named} | known
        if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return known


def _is_default(value: object, parameter: Parameter) -> bool:
    default = parameter.default
    return isinstance(default, _PLAIN) and type(value) is type(default) and value == default


def _is_inert(annotation: object) -> bool:
    """Returns True if a parser takes text for such a parameter as text, and imports nothing."""
    if is_typeddict(annotation):
        return all(_is_inert(part) for part in get_type_hints(annotation).values())
    if get_origin(annotation) in _CONTAINERS:
        return all(_is_inert(part) for part in get_args(annotation))
    is_number = isinstance(annotation, type) and issubclass(annotation, int | float)
    return is_number or get_origin(annotation) is Literal or annotation in _INERT


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
def limited_by(weights: Mapping[str, Tensor], options: Mapping[str, Any]) -> Iterator[None]:
    """Stops a model from being built that is far larger than a checkpoint's weights.

    Parameters and buffers are counted before they are initialised, and so before they take time and
    memory. Where a file gives sizes, no tensor is made that is larger than all of them together, or
    than what an image of this size would be in a network.

    Args:
        weights: The checkpoint's weights.
        options: The model's options: ``class_names``, ``preprocessing`` and ``arch_args``, and any
            others.
    """
    refusal = UserError(
        "the checkpoint describes a network that is far larger than its weights; it was changed"
    )
    images = options.get("preprocessing", {"mean": [], "crop": 1})
    sides = [max(value.shape, default=1) for value in weights.values()]
    arguments = [leaf for leaf in _leaves(options.get("arch_args")) if isinstance(leaf, int)]
    outputs = max(len(options.get("class_names", ())), len(images["mean"]))
    if outputs > max(sides, default=0) or max(arguments, default=0) > _LARGEST_ARGUMENT:
        raise refusal
    left = _ROOM + sum(_OVERHEAD + 2 * value.numel() for value in weights.values())
    most = left + 2 * _CHANNELS * math.prod(sides_of(images["crop"]))

    def count(_module: nn.Module, _name: str, tensor: Tensor | None) -> None:
        nonlocal left
        left -= _OVERHEAD + (0 if tensor is None or is_lazy(tensor) else tensor.numel())
        if left < 0:
            raise refusal

    known = ("class_names", "preprocessing")
    others = _leaves([value for name, value in options.items() if name not in known])
    has_sizes = any(isinstance(leaf, int | float) and leaf > 1 for leaf in others)
    with (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
        limited_tensors(most, refusal) if has_sizes else nullcontext(),
    ):
        yield


@contextmanager
def options_of_library(
    cls: type, option: str, arguments: Mapping[str, object] | None = None
) -> Iterator[None]:
    """Turns an error of a library's class into one of its options, which people choose.

    A class of one's own, and what a library's calls of one's own, may have a bug: that error stays.

    Args:
        cls: The class that is at work.
        option: The option that names it.
        arguments: Its arguments, if it is being built.

    Raises:
        UserError: The class refuses its options.
    """
    try:
        yield
    except Exception as error:
        # of its kinds, memory that ran out is no option
        is_refusal = isinstance(error, _REFUSALS) or type(error) is RuntimeError
        # the first two are this function and its caller
        modules = [str(frame.f_globals["__name__"]) for frame, _ in walk_tb(error.__traceback__)]
        packages = {name.partition(".")[0] for name in [cls.__module__, *modules[2:]]}
        # what a logger of Lightning's logs to may refuse for reasons of any type
        is_service = issubclass(cls, Logger) and cls.__module__.startswith("lightning.")
        if not is_service and (not is_refusal or not packages <= _LIBRARIES):
            raise
        usual = signature(cls).parameters
        changed = ", ".join(
            f"{name}={value!r}"
            for name, value in (arguments or {}).items()
            if name not in usual or usual[name].default != value
        )
        call = f"{cls.__name__}({changed})" if changed else cls.__name__
        raise UserError(f"{call}: {' '.join(str(error).split())}", option) from error
