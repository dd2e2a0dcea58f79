"""A command line's configs and flags, and the classes that they name.

jsonargparse reads from left to right. If a class is named after its arguments, it drops those that
the previous class does not accept, and keeps that class's defaults for the others. So the classes
are taken out here, and become the parser's defaults: it never meets a change of class.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from ..errors import UserError, first_sentence, listed, printable
from ..run.progress import note
from ..run.safe_yaml import read_yaml
from .classes import Bases, accepted, find_class, unknown_class
from .parser import CommandParser, suggestion

Options = dict[str, object]
"""Options by their full names, such as ``model.optimizer.lr``; ``model.optimizer`` is the class."""

CLASS_KEYS = (
    *("data", "model", "model.loss", "model.optimizer", "model.lr_scheduler"),
    *("trainer.logger", "trainer.strategy", "trainer.profiler"),
)
"""Options that take one class."""
_PATTERNS = ("data.group", "data.label_from")
"""Options whose value is text, even if it looks like a list, as ``[a-z]``."""
_GROUPS = ("data", "model", "trainer", "callbacks")
_WITHOUT_VALUE = re.compile(r"-h|--help|--help-all|--print_config.*|.+\.help")
_NO_CLASS = re.compile(r"(null|true|false)$|\[")
FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""


class CommandLine:
    """The words of a command line.

    Attributes:
        words: Each option with its value as one word, and positional arguments.
        configs: The configs, and as the last one the classes and patterns of flags.
        flags: The other words.
    """

    def __init__(self, args: Iterable[str]) -> None:
        self.words = whole_words(args)
        self.configs = list[Options]()
        texts: Options = {}
        flags = list[str]()
        for word in self.words:
            option, _, value = word.partition("=")
            key = full_name(option)
            if option in ("-c", "--config"):
                self.configs.append(read_config(value))
            elif word.startswith("--") and key in CLASS_KEYS and not _NO_CLASS.match(value):
                texts[key] = read_yaml(value, option) if value.startswith("{") else value
            elif key in _PATTERNS and value != "null":
                texts[key] = value
            else:
                flags.append(word)
        self.configs.append(flat(texts))
        self.flags = _with_class_paths(flags)

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
                if config[key] != named[key]:
                    _drop_others(config, key, named[key])
                elif key in classes:
                    del config[key]
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
        if word != word.encode(errors="replace").decode():
            raise UserError(f"'{printable(word)}' is not UTF-8; rename the file or folder")
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
    """Drops a config's class, and its arguments that a later one does not accept, with a note."""
    known = accepted(cls) if isinstance(cls, type) else {}
    names = [name.removeprefix(f"{key}.") for name in config if name.startswith(f"{key}.")]
    others = [name for name in names if name.partition(".")[0] not in known]
    for name in (key, *(f"{key}.{name}" for name in others)):
        del config[name]
    if others:
        text = f"does not accept {listed(others)} of an earlier config"
        rank_zero_only(note)(f"--{key}: {getattr(cls, '__name__', cls)} {text}")


def require_known(
    names: Collection[str], parser: CommandParser, classes: Mapping[str, type]
) -> None:
    """Raises a UserError if an option is unknown, with the closest name, or follows from others.

    Whatever is below an option, such as ``trainer.callbacks.monitor``, is left to the parser.
    """
    defaults = parser.get_defaults(skip_validation=True).keys()
    # the arguments of several loggers are left to the parser
    known = {full_name(name) for name in defaults if not name.startswith("trainer.")}
    known |= parser.known() - {"trainer", "callbacks"}
    groups = {name.rpartition(".")[0] for name in known if not name.endswith(".help")}
    # arguments of a network stand in an option of their own
    with_args = {name for name in known if f"{name}_args" in known}
    open_ended = tuple(f"{name}." for name in known - groups - with_args)
    for name in names:
        if name in FOLLOWS:
            raise UserError(f"--{name} cannot be given: it follows from {FOLLOWS[name]}")
        if name not in known and not name.startswith(open_ended):
            owners = [
                classes[key].__name__ for key in sorted(classes) if name.startswith(f"{key}.")
            ]
            owner = f" of {owners[-1]}" if owners else ""
            raise UserError(f"there is no option '--{name}'{owner}{suggestion(name, known)}")


def read_config(path: str) -> Options:
    """Reads a config file, or YAML text that starts with a brace; an empty one is an empty dict."""
    if path.startswith("{"):
        return flat(read_yaml(path, "--config"))
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: '{path}' cannot be read: {first_sentence(error)}") from error
    return flat(read_yaml(text, path) or {})


def flat(values: object, group: str = "") -> Options:
    """Names options in full: ``model: {init_args: {arch: x}}`` becomes ``model.arch: x``."""
    if not isinstance(values, Mapping):
        raise UserError(f"--config: expected 'option: value', got '{str(values)[:40]}'")
    options: Options = {}
    for key, value in values.items():
        parts = f"{group}.{key}".split(".")
        name = ".".join(part for part in parts if part not in ("", "class_path", "init_args"))
        inner: Options = {name: value}
        is_nested = isinstance(value, dict) and name in (*_GROUPS, *CLASS_KEYS)
        if is_nested or (value is None and name in _GROUPS):
            inner = flat(value or {}, name)
        for repeated in options.keys() & inner.keys():
            raise UserError(f"--config: '{repeated}' is given twice")
        options |= inner
    return options
