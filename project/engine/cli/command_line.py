"""A command line's configs and flags, and the classes that they name.

jsonargparse reads from left to right. If a class is named after its arguments, it drops those that
the previous class does not accept, and keeps that class's defaults for the others. So the classes
are taken out here, and become the parser's defaults: it never meets a change of class.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from lightning.pytorch.utilities import rank_zero_only

from ..errors import UserError, listed, printable
from ..run.progress import note
from .classes import Bases, accepted, find_class, unknown_class
from .config import CLASS_KEYS, Options, flat, read_config, read_yaml
from .parser import suggestion

_WITHOUT_VALUE = re.compile(r"-h|--help|--help-all|--print_config.*|.+\.help")
_NO_CLASS = re.compile(r"(null|true|false)$|\[")


@dataclass
class CommandLine:
    """The words of a command line.

    Attributes:
        words: Each option with its value as one word, and positional arguments.
        configs: The configs, and the classes that flags name as the last one.
        flags: The other words.
    """

    words: list[str]
    configs: list[Options]
    flags: list[str]

    @classmethod
    def read(cls, args: Iterable[str]) -> "CommandLine":
        """Reads the configs, and separates classes from other words."""
        configs = list[Options]()
        classes: Options = {}
        flags = list[str]()
        words = whole_words(args)
        for word in words:
            if word != word.encode(errors="replace").decode():
                raise UserError(f"'{printable(word)}' is not UTF-8; rename the file or folder")
            option, _, value = word.partition("=")
            key = full_name(option)
            if option in ("-c", "--config"):
                configs.append(read_config(value))
            elif word.startswith("--") and key in CLASS_KEYS and not _NO_CLASS.match(value):
                classes[key] = read_yaml(value, option) if value.startswith("{") else value
            else:
                flags.append(word)
        return cls(words, [*configs, flat(classes)], _with_class_paths(flags))

    def values(self, option: str) -> list[str]:
        """Returns the values that flags give to an option, in order."""
        start = f"{option}="
        return [word.removeprefix(start) for word in self.words if word.startswith(start)]

    @property
    def positionals(self) -> list[str]:
        """Returns the arguments without a name."""
        return [word for word in self.words if not word.startswith("-")]

    @property
    def names(self) -> set[str]:
        """Returns the names of all options that are given."""
        flags = [full_name(word.partition("=")[0]) for word in self.flags if word.startswith("--")]
        names = [*flags, *(name for config in self.configs for name in config)]
        return {name.removesuffix("+") for name in names}

    def take_classes(
        self, bases: Bases, defaults: Options, path_classes: Mapping[str, type]
    ) -> dict[str, type]:
        """Takes the class of each option, the one named last, out of the configs.

        ``defaults`` are classes and their arguments if no other class is named; ``path_classes``
        are the data modules for ``--data PATH``, by the argument that takes the path.
        """
        classes: dict[str, type] = {}
        for config in reversed(self.configs):
            for key, cls in classes.items():
                _drop_others(config, key, cls)
            named = _take_classes(config, bases, path_classes)
            classes = named | classes
        for key, cls in _take_classes(defaults, bases, path_classes).items():
            if classes.setdefault(key, cls) is not cls:
                for name in [name for name in defaults if name.startswith(f"{key}.")]:
                    del defaults[name]
        return classes


def whole_words(args: Iterable[str]) -> list[str]:
    """Joins each option and its value to one word; no option takes several values."""
    words = list[str]()
    rest = iter(args)
    for word in rest:
        if word.startswith("-") and "=" not in word and not _WITHOUT_VALUE.fullmatch(word):
            if (value := next(rest, None)) is None:
                raise UserError(f"{word} needs a value")
            word = f"{word}={value}"
        words.append(word)
    return words


def _with_class_paths(flags: list[str]) -> list[str]:
    """Names a function of the data that has arguments as jsonargparse names a class."""
    options = [flag.partition("=")[0] for flag in flags if flag.startswith("--data.")]
    owners = tuple(f"{option.rpartition('.')[0]}=" for option in options if option.count(".") > 1)
    return [
        flag.replace("=", ".class_path=", 1) if flag.startswith(owners) else flag for flag in flags
    ]


def full_name(option: str) -> str:
    """Returns an option's name in this module: without dashes, ``init_args`` and ``class_path``."""
    return option.removeprefix("--").removesuffix(".class_path").replace(".init_args.", ".")


def _drop_others(config: Options, key: str, cls: type) -> None:
    """Drops what a class that is named later does not accept, with a note."""
    config.pop(key, None)
    arguments = [name for name in config if name.startswith(f"{key}.")]
    depth = key.count(".") + 1
    others = [name for name in arguments if name.split(".")[depth] not in accepted(cls)]
    for name in others:
        del config[name]
    if others:
        names = listed(name.removeprefix(f"{key}.") for name in others)
        text = f"--{key}: {cls.__name__} does not accept {names} of an earlier config"
        rank_zero_only(note)(text)


def _take_classes(
    config: Options, bases: Bases, path_classes: Mapping[str, type]
) -> dict[str, type]:
    """Takes classes out of a config; a folder, file or hf:NAME stands for its data module."""
    classes: dict[str, type] = {}
    for key, base in bases.items():
        name = config.get(key)
        if not isinstance(name, str):  # false, null, or a list of loggers
            continue
        path = os.path.expanduser(name)
        if cls := find_class(base, name):
            classes[key] = cls
            del config[key]
        elif key == "data" and name.startswith("hf:"):
            classes[key] = path_classes["hf"]
            config["data.root"] = config.pop(key).removeprefix("hf:")
        elif key == "data" and os.path.exists(path):
            argument = "root" if os.path.isdir(path) else "file"
            classes[key] = path_classes[argument]
            config[f"data.{argument}"] = config.pop(key)
        # others are such as ``ddp``, or a loss that is a function
        elif not (key.startswith("trainer.") or (key == "model.loss" and "." in name)):
            raise unknown_class(key, base, name)
    return classes


def all_classes(classes: Mapping[str, type], bases: Bases) -> dict[str, type]:
    """Returns the classes, and those that the model has by default, such as its optimizer."""
    parts: dict[str, type] = {}
    for name, default in accepted(classes["model"]).items() if "model" in classes else ():
        key = f"model.{name}"
        if key in bases and isinstance(default, dict):
            cls = find_class(bases[key], default["class_path"])
            parts |= {key: cls} if cls else {}
    return dict(sorted({**parts, **classes}.items()))


def require_known(
    names: Iterable[str], known: Collection[str], classes: Mapping[str, type]
) -> None:
    """Raises a UserError that suggests the closest name if an option is unknown.

    Whatever is below an option, such as ``trainer.callbacks.monitor``, is left to the parser.
    """
    groups = {name.rpartition(".")[0] for name in known if not name.endswith(".help")}
    open_ended = tuple(f"{name}." for name in known if name not in groups)
    for name in names:
        if name not in known and not name.startswith(open_ended):
            owners = [classes[key].__name__ for key in classes if name.startswith(f"{key}.")]
            owner = f" of {owners[-1]}" if owners else ""
            raise UserError(f"there is no option '--{name}'{owner}{suggestion(name, known)}")
