"""Options that take a class: which classes there are, what each accepts, and its parser."""

import inspect
from argparse import SUPPRESS
from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pkgutil import resolve_name
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import UserError
from ..run.settings import subclasses
from ..upstream import options_of
from .parser import CommandParser

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


class ClassParser(CommandParser, LightningArgumentParser):
    """The parser of a command; jsonargparse makes one for each class that an option takes."""

    is_of_class = False

    def validate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> None:
        """Refuses null for a class's argument that takes none, which jsonargparse lets pass."""
        super().validate(namespace, *args, **kwargs)
        for option in options_of(self) if self.is_of_class else ():
            if option.default is not None and namespace.get(option.dest, ...) is None:
                null = Namespace({option.dest: None})  # type: ignore[no-untyped-call]
                super().validate(null, skip_unset=False, skip_required=True)

    def add_class_arguments(
        self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        """Changes defaults that do not suit a run.

        Loggers write into the run's folder; a loss returns one number per image.
        """
        self.is_of_class = nested_key is None
        added: list[str] = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for option in options_of(self):
            if option.dest == "save_dir" and option.required and issubclass(theclass, Logger):
                option.required = False
                option.default = "."
            if option.dest == "reduction" and issubclass(theclass, nn.Module):
                option.default = "none"
            if isinstance(option.default, Enum | torch.device):  # YAML has neither
                option.default = str(getattr(option.default, "value", option.default))
        return added

    def add_function_arguments(
        self, *args: Any, linked_targets: object = None, **kwargs: Any
    ) -> list[str]:
        """Leaves out an argument that jsonargparse passes, and takes for classes alone."""
        added: list[str] = super().add_function_arguments(*args, **kwargs)
        return added


def candidates(base: type) -> list[type]:
    """Returns the classes that an option may name without their module."""
    classes = subclasses(base)
    return [cls for cls in classes if not inspect.isabstract(cls) and cls.__name__[0] != "_"]


def find_class(base: type, name: str) -> type | None:
    """Finds the class of a path, or of a name; of several, the one defined last."""
    classes: list[object] = [cls for cls in candidates(base) if cls.__name__ == name]
    with suppress(ImportError, AttributeError, ValueError):
        if "." in name:
            classes.append(resolve_name(name))
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
    parser = LightningArgumentParser(add_help=False, usage=SUPPRESS, description="")
    # the model passes parameters to its optimizer, and the optimizer to its schedule
    is_partial = issubclass(cls, Optimizer | LRScheduler)
    parser.add_class_arguments(cls, key, skip={1} if is_partial else set(), fail_untyped=False)
    return parser


@cache
def accepted(cls: type) -> dict[str, object]:
    """Returns the arguments that a class accepts, with their defaults."""
    return dict(class_parser(cls).get_defaults().as_dict())


def path_of(cls: type) -> str:
    """Returns the full path of a class, by which it is imported."""
    return f"{cls.__module__}.{cls.__qualname__}"
