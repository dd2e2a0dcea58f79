"""Options that take a class: which classes there are, and what each accepts."""

import inspect
from argparse import SUPPRESS
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pkgutil import resolve_name

from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import UserError
from ..run.settings import subclasses
from .config import Options

Bases = Mapping[str, type]
"""Options that take a class, and its base."""

TRAINER_BASES: Bases = {
    "trainer.logger": Logger,
    "trainer.strategy": Strategy,
    "trainer.profiler": Profiler,
}
MODEL_BASES: Bases = {
    "model.loss": nn.Module,
    "model.optimizer": Optimizer,
    "model.lr_scheduler": LRScheduler,
}


def candidates(base: type) -> list[type]:
    """Returns the classes that an option may name without their module."""
    classes = subclasses(base)
    return [cls for cls in classes if not inspect.isabstract(cls) and cls.__name__[0] != "_"]


def find_class(base: type, name: str) -> type | None:
    """Finds the class of a path, or of a name; of several, the one defined last."""
    classes: list[object] = [cls for cls in candidates(base) if cls.__name__ == name]
    if "." in name:
        try:
            classes = [resolve_name(name)]
        except (ImportError, AttributeError, ValueError):
            return None
    matches = [cls for cls in classes if isinstance(cls, type) and issubclass(cls, base)]
    return matches[-1] if matches else None


def unknown_class(key: str, base: type, name: str) -> UserError:
    """Builds the error about a class that does not exist, with the closest name."""
    names = {cls.__name__.lower(): cls.__name__ for cls in candidates(base)}
    advice = "name a class of your own with its module, as in my_module.MyClass"
    for nearest in get_close_matches(name.rpartition(".")[2].lower(), names, n=1):
        advice = f"did you mean {names[nearest]}?"
    kinds = f"folder, file or {base.__name__}" if key == "data" else base.__name__
    return UserError(f"--{key}: there is no {kinds} '{name}'; {advice}")


def class_parser(cls: type, key: str | None = None) -> LightningArgumentParser:
    """Builds a parser of what a class accepts, and the classes that it passes ``**kwargs`` to."""
    parser = LightningArgumentParser(
        exit_on_error=False, add_help=False, usage=SUPPRESS, description=""
    )
    # the model passes parameters to its optimizer, and the optimizer to its schedule
    is_partial = issubclass(cls, Optimizer | LRScheduler)
    parser.add_class_arguments(cls, key, skip={1} if is_partial else set(), fail_untyped=False)
    return parser


@cache
def accepted(cls: type) -> Options:
    """Returns the arguments that a class accepts, with their defaults."""
    defaults: Options = class_parser(cls).get_defaults().as_dict()
    return defaults


def path_of(cls: type) -> str:
    """Returns the full path of a class, by which it is imported."""
    return f"{cls.__module__}.{cls.__qualname__}"
