"""Options that take a class: which classes there are, and what each accepts."""

import inspect
from argparse import SUPPRESS
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

CLASS_OPTIONS: dict[str, type] = {
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
"""The options that take a class, and its base; the template puts its own bases for ``data`` and ``model``."""


def candidates(key: str) -> list[type]:
    """Returns the classes to propose for an option; of torch's modules only losses, by their names."""
    found = [
        cls
        for cls in subclasses(CLASS_OPTIONS[key])
        if not inspect.isabstract(cls) and cls.__name__[0] != "_"
    ]
    return (
        [cls for cls in found if cls.__name__.endswith(("Loss", "Entropy"))]
        if key == "model.loss"
        else found
    )


def find_class(key: str, name: object) -> type | None:
    """Finds the one class of a path, or of a name among imported subclasses, as jsonargparse does; else None."""
    base, (module, _, last) = CLASS_OPTIONS[key], str(name).rpartition(".")
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
    found = [cls for cls in named if isinstance(cls, type) and issubclass(cls, base)]
    # Lightning has its own of some of torch's classes
    return next((cls for cls in found if all(issubclass(cls, other) for other in found)), None)


def unknown_class(key: str, name: str) -> str:
    """Formats the message about a class that there is not, with the nearest name, or of which there are several."""
    if len(same := [path_of(cls) for cls in candidates(key) if cls.__name__ == name]) > 1:
        return (
            f"--{key}: several classes are called '{name}'; give the path of one: {', '.join(same)}"
        )
    names = {cls.__name__.lower(): cls.__name__ for cls in candidates(key)}
    if nearest := get_close_matches(name.rpartition(".")[2].lower(), names, n=1):
        meant = f"; did you mean {names[nearest[0]]}?"
    elif key == "model":
        meant = f"; did you mean --model.arch {name}?"
    else:
        meant = (
            f"; name your own with its module, as in my_module.{name}"
            if name.isidentifier()
            else ""
        )
    kinds = f"{'folder, file or ' if key == 'data' else ''}{CLASS_OPTIONS[key].__name__}"
    return f"--{key}: there is no {kinds} '{name}'{meant}"


def class_parser(cls: type, key: str | None = None) -> LightningArgumentParser:
    """Builds a parser of what a class accepts, and of what the classes accept to which it passes ``**kwargs``."""
    parser = LightningArgumentParser(
        exit_on_error=False, add_help=False, usage=SUPPRESS, description=""
    )
    given: set[str | int] = (
        {1} if issubclass(cls, Optimizer | LRScheduler) else set()
    )  # the model gives the first
    parser.add_class_arguments(cls, key, skip=given, fail_untyped=False)
    return parser


@cache
def accepted(cls: type) -> dict[str, Any]:
    """Returns the arguments that a class accepts, with their defaults; none where its signature cannot be read."""
    try:
        defaults: dict[str, Any] = class_parser(cls).get_defaults().as_dict()
    except ValueError:  # as of some of Lightning's callbacks
        return {}
    return defaults


def path_of(cls: type) -> str:
    """Returns the full path of a class, by which it is imported."""
    return f"{cls.__module__}.{cls.__qualname__}"
