"""Classes that options name: finding them, and parsing and building what they accept."""

import inspect
from argparse import SUPPRESS
from collections.abc import Mapping
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger

from ..exact._errors import UserError
from ..images._settings import options_of_library, subclasses
from ._parser import CommandParser, full_name
from ._upstream import options_of


def candidates(base: type) -> list[type]:
    """Returns the classes that an option may name without their module."""
    classes = subclasses(base)
    return [cls for cls in classes if not inspect.isabstract(cls) and cls.__name__[0] != "_"]


def find_class(base: type, name: str) -> type | None:
    """Finds the class of a path, or of a name; of several, the one defined last."""
    cls: object = {cls.__name__: cls for cls in candidates(base)}.get(name)
    cls = imported(name) if "." in name else cls
    return cls if isinstance(cls, type) and issubclass(cls, base) else None


def imported(path: str) -> object:
    """Returns what a path of Python names; an error of its module is raised as it is."""
    module, _, attribute = path.rpartition(".")
    if all(map(str.isidentifier, module.split("."))):
        try:
            return getattr(import_module(module), attribute, None)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):  # but a package that it needs
                raise
    return None


def class_parser(cls: type, key: str | None = None) -> LightningArgumentParser:
    """Builds a parser of what a class accepts, and the classes that it passes ``**kwargs`` to."""
    parser = LightningArgumentParser(add_help=False, usage=SUPPRESS, description="")
    parser.add_class_arguments(cls, key, fail_untyped=False)
    return parser


class ClassParser(CommandParser, LightningArgumentParser):
    """The parser of a command; jsonargparse makes one for each class that an option takes."""

    def instantiate_classes(self, config: Namespace, **options: Any) -> Namespace:
        """Builds what a config names; Lightning calls ``instantiate`` by its older name."""
        names = {full_name(name): value for name, value in vars(config.as_flat()).items()}
        construct = partial(build, names)
        built: Namespace = self.instantiate(
            config, instantiators=[(construct, object, True)], **options
        )
        return built

    def validate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> None:
        """Refuses null for an argument that takes none, which jsonargparse lets pass."""
        super().validate(namespace, *args, **kwargs)
        for option in options_of(self):
            if option.default is not None and namespace.get(option.dest, ...) is None:
                null = Namespace({option.dest: None})  # type: ignore[no-untyped-call]
                super().validate(null, skip_unset=False, skip_required=True)

    def add_function_arguments(
        self, *args: Any, linked_targets: object = None, **kwargs: Any
    ) -> list[str]:
        """Leaves out an argument that jsonargparse passes, and takes for classes alone."""
        added: list[str] = super().add_function_arguments(*args, **kwargs)
        return added

    def add_class_arguments(self, theclass: type, *args: object, **kwargs: object) -> list[str]:
        """Changes defaults that do not suit a run: loggers write into the run's folder."""
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        for option in options_of(self):
            if option.dest == "save_dir" and option.required and issubclass(theclass, Logger):
                option.required = False
                option.default = "."
            if isinstance(option.default, Enum):  # which YAML has not
                option.default = option.default.value
        return added


def build(config: Mapping[str, object], cls: type, /, *args: object, **arguments: object) -> object:
    """Builds a class that a config names; a library's may refuse its arguments."""
    option = next((name for name, value in config.items() if cls.__name__ in str(value)), "config")
    with options_of_library(cls, f"--{option}", arguments):
        try:
            return cls(*args, **arguments)
        except UserError as error:  # here, as jsonargparse makes it the cause of its own
            error.option = f"--{option}.{error.option}" if error.option else None
            raise
