"""Options that take a class: which classes there are, and what each accepts."""

import inspect
from argparse import SUPPRESS
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..run.settings import subclasses
from .config import path_of

Bases = Mapping[str, type]

CLASS_OPTIONS: Bases = {
    "data": LightningDataModule,
    "model": LightningModule,
    "model.loss": nn.Module,
    "model.optimizer": Optimizer,
    "model.lr_scheduler": LRScheduler,
    "trainer.logger": Logger,
    "trainer.strategy": Strategy,
    "trainer.profiler": Profiler,
    "trainer.callbacks": Callback,
}
"""The options that take a class, and its base; a command has its own bases of ``data`` and ``model``."""


def candidates(base: type) -> list[type]:
    """Returns the classes to suggest for an option; of torch's modules only losses, by their names."""
    classes = [
        cls for cls in subclasses(base) if not inspect.isabstract(cls) and cls.__name__[0] != "_"
    ]
    if base is nn.Module:
        return [cls for cls in classes if cls.__name__.endswith(("Loss", "Entropy"))]
    return classes


def find_class(base: type, name: object) -> type | None:
    """Finds the one class of a path, or of a name among imported subclasses, as jsonargparse does; else None."""
    module, _, last = str(name).rpartition(".")
    if not all(part.isidentifier() for part in str(name).split(".")):
        return None
    named = [
        cls for cls in subclasses(base) if cls.__name__ == last and not inspect.isabstract(cls)
    ]
    if module:
        try:
            named = [getattr(import_module(module), last)]
        except (ModuleNotFoundError, AttributeError):
            return None
    classes = [cls for cls in named if isinstance(cls, type) and issubclass(cls, base)]
    # Lightning has its own of some of torch's classes
    return next((cls for cls in classes if all(issubclass(cls, other) for other in classes)), None)


def unknown_class(key: str, base: type, name: str) -> str:
    """Formats the message about a class that does not exist, with the closest name, or that is ambiguous."""
    names = {cls.__name__.lower(): cls.__name__ for cls in candidates(base)}
    if len(same := [path_of(cls) for cls in candidates(base) if cls.__name__ == name]) > 1:
        return (
            f"--{key}: several classes are called '{name}'; use the path of one: {', '.join(same)}"
        )
    if nearest := get_close_matches(name.rpartition(".")[2].lower(), names, n=1):
        advice = f"did you mean {names[nearest[0]]}?"
    elif key == "model":
        advice = f"did you mean --model.arch {name}?"
    else:
        advice = "name a class of your own with its module, as in my_module.MyClass"
    kinds = f"folder, file or {base.__name__}" if key == "data" else base.__name__
    return f"--{key}: there is no {kinds} '{name}'; {advice}"


def class_parser(cls: type, key: str | None = None) -> LightningArgumentParser:
    """Builds a parser of what a class accepts, and of what the classes accept to which it passes ``**kwargs``."""
    parser = LightningArgumentParser(
        exit_on_error=False, add_help=False, usage=SUPPRESS, description=""
    )
    # the model passes parameters to its optimizer, and the optimizer to its schedule
    is_partial = issubclass(cls, Optimizer | LRScheduler)
    parser.add_class_arguments(cls, key, skip={1} if is_partial else set(), fail_untyped=False)
    return parser


@cache
def accepted(cls: type) -> dict[str, Any]:
    """Returns the arguments that a class accepts, with their defaults; none if its signature is unreadable."""
    try:
        defaults: dict[str, Any] = class_parser(cls).get_defaults().as_dict()
    except ValueError:  # some Lightning callbacks
        return {}
    return defaults
