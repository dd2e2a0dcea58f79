"""Options that take a class: which classes there are, and what each accepts."""

import argparse
import inspect
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

from jsonargparse import set_parsing_settings
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from project.callbacks import DefaultCallbacks
from project.data import ImageDataModule
from project.model import ImageClassifier

from ..errors import listed
from ..run.settings import subclasses
from ..upstream import options_of

CLASS_OPTIONS: dict[str, type] = {
    "data": ImageDataModule,
    "model": ImageClassifier,
    "model.loss": nn.Module,
    "model.optimizer": Optimizer,
    "model.lr_scheduler": LRScheduler,
    "trainer.logger": Logger,
    "trainer.strategy": Strategy,
    "trainer.profiler": Profiler,
    "trainer.callbacks": Callback,
}
"""The options that take a class, and what it must derive from; those of a class of the model after it."""

CALLBACK_OPTIONS: dict[str, type] = {
    f"callbacks.{name}": cls
    for name, hint in get_type_hints(DefaultCallbacks).items()
    for cls in get_args(hint)
    if issubclass(cls, Callback)
}
"""The default callbacks that have options of their own."""

set_parsing_settings(subclasses_disabled=[*CALLBACK_OPTIONS.values()])  # they are given by options, not by a class

_GIVEN_BY_US: dict[type, str] = {Optimizer: "params", LRScheduler: "optimizer"}
"""What classes get from the model, not from the command line."""

_USUAL = {"FolderDataModule", "CrossEntropyLoss", "SGD", "AdamW", "StepLR", "EarlyStopping"}
"""What is meant most often, named first."""


def candidates(key: str) -> list[type]:
    """The classes to propose for an option; of all modules of torch, only those that are losses by their name.

    Loggers that a run puts in place of Lightning's are left out.

    Args:
        key: The option, without dashes.
    """
    found = [cls for cls in subclasses(CLASS_OPTIONS[key]) if not cls.__module__.startswith("project.engine.run.")]
    return [cls for cls in found if cls.__name__.endswith("Loss")] if key == "model.loss" else found


def find_class(key: str, name: object) -> type | None:
    """Finds a class as jsonargparse does.

    Args:
        key: The option, without dashes.
        name: The class, alone or with its module.

    Returns:
        The class, or None where there is none of this kind, or more than one.
    """
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        return None
    module, _, last = name.rpartition(".")
    if module:
        try:
            found = [getattr(import_module(module), last)]
        except (ImportError, AttributeError, ValueError):
            return None
    else:
        found = [cls for cls in subclasses(CLASS_OPTIONS[key]) if cls.__name__ == last and not inspect.isabstract(cls)]
    found = [cls for cls in found if isinstance(cls, type) and issubclass(cls, CLASS_OPTIONS[key])]
    found = [cls for cls in found if all(issubclass(cls, other) for other in found)]  # Lightning has its own of some
    return found[0] if found else None


def class_path(cls: type, name: str) -> str:
    """The path by which a parser imports a class; its name as it was given where it is local to a function."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    return name if "<locals>" in path else path


class ClassParser(LightningArgumentParser):
    """A parser that shows its options."""

    def actions(self) -> list[argparse.Action]:
        """The options, in their order."""
        return options_of(self)


def class_parser(cls: type) -> ClassParser:
    """A parser of what a class accepts, those of the classes that it passes ``**kwargs`` to included."""
    parser = ClassParser(exit_on_error=False)
    given = {name for base, name in _GIVEN_BY_US.items() if issubclass(cls, base)}
    parser.add_class_arguments(cls, skip=given & {*inspect.signature(cls).parameters}, fail_untyped=False)
    return parser


@cache
def accepted(cls: type) -> dict[str, Any]:
    """What a class accepts, with the defaults."""
    defaults: dict[str, Any] = class_parser(cls).get_defaults().as_dict()
    return defaults


def option_of(cls: type) -> str | None:
    """The option that takes such a class, without dashes; None for a transform, of which options take lists."""
    if cls.__module__.startswith("torchvision.transforms"):
        return None
    default = next((key for key, default in CALLBACK_OPTIONS.items() if default is cls), None)
    return default or next((key for key, base in CLASS_OPTIONS.items() if issubclass(cls, base)), None)


def no_such_option(key: str, cls: type, name: str) -> str:
    """Says that a class has no such option, and which has, or what was meant.

    Args:
        key: The option that takes the class, without dashes.
        cls: The class.
        name: What was given to it.
    """
    text = f"--{key}.{name}: {cls.__name__} has no option '{name}'"
    if having := key in CLASS_OPTIONS and _who_has(key, name):
        return f"{text}; {having}"
    inner = [nested for nested in CLASS_OPTIONS if nested.startswith(f"{key}.") and _having(nested, name)]
    if inner:
        return f"{text}; did you mean --{inner[0]}.{name}?"
    nearest = get_close_matches(name, accepted(cls), n=1, cutoff=0.6)
    if nearest:
        return f"{text}; did you mean --{key}.{nearest[0]}?"
    return f"{text}; it has {', '.join(accepted(cls)) or 'none'}"


def no_such_default(name: str) -> str:
    """Says that no default callback has that name, and which there are.

    Args:
        name: What was given after ``--callbacks.``.
    """
    names = [field.name for field in fields(DefaultCallbacks)]
    nearest = get_close_matches(name, names, n=1)
    hint = f"did you mean --callbacks.{nearest[0]}?" if nearest else f"there are {listed(names)}"
    return f"there is no default callback '{name}'; {hint}"


def no_class(key: str, name: str) -> str:
    """Says that an argument of a class was given, but no class.

    Args:
        key: The option that takes the class, without dashes.
        name: What was given to it.
    """
    having = _who_has(key, name)
    return f"--{key}.{name} needs a class" + (f"; {having}" if having else f", as in --{key} CLASS")


def _who_has(key: str, name: str) -> str:
    names = _having(key, name)
    if not names:
        return ""
    return f"{listed(names[:3])} {'has' if len(names) == 1 else 'have'} it, as in --{key} {names[0]}"


def _having(key: str, name: str) -> list[str]:
    """The names of the classes that have such an option."""
    having = [cls for cls in candidates(key) if _shown(cls) and name in _accepted_if_any(cls)]
    having.sort(key=lambda cls: cls.__name__ not in _USUAL)
    return list(dict.fromkeys(cls.__name__ for cls in having))


def _accepted_if_any(cls: type) -> dict[str, Any]:
    """What a class accepts; nothing where its signature is beyond jsonargparse, as of some of Lightning's callbacks."""
    try:
        return accepted(cls)
    except ValueError:
        return {}


def _shown(cls: type) -> bool:
    return not inspect.isabstract(cls) and not cls.__name__.startswith("_")
