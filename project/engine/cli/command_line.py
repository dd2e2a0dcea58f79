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
_YAML = re.compile(r"(null|true|false)$|[\[{]")


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
        words = whole_words(args)
        configs = list[Options]()
        classes: Options = {}
        flags = list[str]()
        for word in words:
            option, _, value = word.partition("=")
            key = full_name(option)
            if option in ("-c", "--config"):
                configs.append(read_config(value))
            elif word.startswith("--") and key in CLASS_KEYS:
                classes[key] = read_yaml(value, option) if _YAML.match(value) else value
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

    def take_classes(self, bases: Bases, path_classes: Mapping[str, type]) -> dict[str, type]:
        """Takes the class of each option, the one named last, out of the configs.

        What it does not accept of a config that names another one is dropped with a note.
        ``path_classes`` are the data modules for ``--data PATH``, by the argument of the path.
        """
        for config in self.configs:
            _find_classes(config, bases, path_classes)
        named = {key: config[key] for config in self.configs for key in bases if key in config}
        classes = {key: cls for key, cls in named.items() if isinstance(cls, type)}
        for config in self.configs:
            for key in named.keys() & config.keys():
                is_other = config[key] != named[key]
                if is_other:
                    _drop_others(config, key, named[key])
                if is_other or key in classes:
                    del config[key]
        return classes


def whole_words(args: Iterable[str]) -> list[str]:
    """Joins each option and its value to one word; no option takes several values."""
    words = list[str]()
    rest = iter(args)
    for word in rest:
        if word != word.encode(errors="replace").decode():
            raise UserError(f"'{printable(word)}' is not UTF-8; rename the file or folder")
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
    """Returns an option's name as configs have it here: without dashes and ``init_args``."""
    return option.removeprefix("--").removesuffix(".class_path").replace(".init_args.", ".")


def _find_classes(config: Options, bases: Bases, path_classes: Mapping[str, type]) -> None:
    """Replaces names by classes; a folder, file or hf:NAME stands for its data module."""
    for key in bases.keys() & config.keys():
        name = config[key]
        if not isinstance(name, str):  # false, null, or a list of loggers
            continue
        path = os.path.expanduser(name)
        if cls := find_class(bases[key], name):
            config[key] = cls
        elif key == "data" and name.startswith("hf:"):
            config |= {"data": path_classes["hf"], "data.root": name.removeprefix("hf:")}
        elif key == "data" and os.path.exists(path):
            argument = "root" if os.path.isdir(path) else "file"
            config |= {"data": path_classes[argument], f"data.{argument}": name}
        # others are such as ``ddp``, or a loss that is a function
        elif not (key.startswith("trainer.") or (key == "model.loss" and "." in name)):
            raise unknown_class(key, bases[key], name)


def _drop_others(config: Options, key: str, cls: object) -> None:
    """Drops a config's arguments that a later class does not accept, with a note."""
    known = accepted(cls) if isinstance(cls, type) else {}
    names = [name.removeprefix(f"{key}.") for name in config if name.startswith(f"{key}.")]
    others = [name for name in names if name.partition(".")[0] not in known]
    for name in others:
        del config[f"{key}.{name}"]
    if others:
        owner = getattr(cls, "__name__", cls)
        text = f"--{key}: {owner} does not accept {listed(others)} of an earlier config"
        rank_zero_only(note)(text)


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
            owners = [
                classes[key].__name__ for key in sorted(classes) if name.startswith(f"{key}.")
            ]
            owner = f" of {owners[-1]}" if owners else ""
            raise UserError(f"there is no option '--{name}'{owner}{suggestion(name, known)}")
