"""Limits of the network that a checkpoint describes: names that it may reach, and its size."""

import sys
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from ..errors import UserError, printable
from .settings import imported_class

_LARGEST_ARGUMENT = 2**16  # of depths, widths and sizes, above which even lists of a constructor's take long
_allowed: set[str] = set()


def allow_module(name: str) -> None:
    """Lets checkpoints name networks that a module defines, as the user has named it."""
    _allowed.add(name)


def own_network(path: str, arguments: Any) -> str:
    """Finds a network that a checkpoint names in the modules that the user has named; imports nothing.

    Refuses a function with a text among its arguments, which might be a place to write to. A class may have moved.
    """
    module, _, name = path.rpartition(".")
    found = vars(sys.modules.get(module, object)).get(name)  # getattr would let a lazy module import
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
    refusal = UserError("the checkpoint describes a network that is far larger than its weights; it was changed")
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
