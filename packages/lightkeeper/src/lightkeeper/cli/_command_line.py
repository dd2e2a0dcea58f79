"""A command line's configs and flags, and the classes that they name.

jsonargparse reads from left to right. If a class is named after its arguments, it drops those that
the previous class does not accept, and keeps that class's defaults for the others. So the classes
are taken out here, and become the parser's defaults: it never meets a change of class.
"""

import os
import re
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import Profiler
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..exact._errors import UserError, first_sentence, listed, note
from ._classes import candidates, class_parser, find_class, imported
from ._parser import closest, full_name, import_modules, read_yaml, require_values

Options = dict[str, object]
"""Options by their full names, such as ``model.optimizer.lr``; ``model.optimizer`` is the class."""
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
_CLASS_KEYS = ("data", "model", *MODEL_BASES, *TRAINER_BASES)
_PATTERNS = ("data.group", "data.label_from")
"""Options whose value is text, even if it looks like a list, as ``[a-z]``."""
_CALLBACKS = "trainer.callbacks"
_LISTS = ("data.train_transforms", "data.batch_transforms", _CALLBACKS)
"""Options that take a list of classes."""
_GROUPS = ("data", "model", "trainer", "callbacks")
_WAITS = re.compile(r"(?!--help-all$|--print_config|.+\.help$)-[^=]+")
"""An option without its value, or a switch."""
_PATHS = ("data.root", "data.file")  # what --data PATH names, too
_NO_CLASS = re.compile(r"(null|true|false)$|\[")


class CommandLine:
    """The words of a command line.

    Args:
        args: The words as the shell passes them.
        switches: Options that take no value.

    Attributes:
        words: Each option with its value as one word, and positional arguments.
        positionals: The arguments without a name.
        configs: The configs, and as the last one the classes and patterns of flags.
        flags: The other words.
    """

    def __init__(self, args: Iterable[str], switches: Container[str]) -> None:
        self.words = whole_words(args, switches)
        self.positionals = [word for word in self.words if not word.startswith("-")]
        self.configs = list[Options]()
        texts: Options = {}
        flags = list[str]()
        for word in self.words:
            option, _, value = word.partition("=")
            key = full_name(option)
            is_value = "." in key and _NO_CLASS.match(value)  # data and model are classes
            if option == "--import":  # before its classes are named
                import_modules(value)
            if key in _LISTS and not (_NO_CLASS.match(value) or os.path.isfile(value)):
                raise UserError(
                    f"{option} is a list: {option}+={value} adds to it, and {option}=[{value}]"
                    " replaces it"
                )
            if option in ("-c", "--config"):
                self.configs.append(read_config(value))
            elif word.startswith("--") and key in _CLASS_KEYS and not is_value:
                texts[key] = read_yaml(value, option) if value.startswith("{") else value
            elif key in _PATTERNS and value != "null":
                texts[key] = value
            else:
                if option.endswith("+"):  # jsonargparse would hide an error of the module
                    imported(value)
                flags.append(word)
        self.configs.append(flat(texts))
        self.flags = _with_class_paths(flags)
        words = [flag.partition("=")[::2] for flag in self.flags]
        self._values = [(full_name(option), value) for option, value in words]
        self._require_callbacks()

    @property
    def names(self) -> set[str]:
        """The full names of all options that are given, by flags and by configs."""
        return {name for name, _ in self._values}.union(*self.configs)

    def _require_callbacks(self) -> None:
        """Refuses names of no callback, for which jsonargparse lists all that it has tried."""
        values = [
            read_yaml(value, f"--{name}")
            for name, value in self._values
            if name.rstrip("+") == _CALLBACKS and not os.path.isfile(value)
        ]
        values += [config.get(f"{_CALLBACKS}{end}") for config in self.configs for end in ("", "+")]
        for value in values:
            for part in value if isinstance(value, list) else [value]:
                name = part.get("class_path") if isinstance(part, Mapping) else part
                _class_or_value(_CALLBACKS, Callback, name)

    def take_classes(self, bases: Bases, path_classes: Mapping[str, type]) -> dict[str, type]:
        """Takes the class of each option, the one named last, out of the configs.

        What it does not accept of a config that names another one is dropped with a note.
        ``path_classes`` are the data modules for ``--data PATH``, by the argument of the path.
        """
        classes: dict[str, type] = {}
        for config in reversed(self.configs):
            _name_data_module(config, path_classes)
            for key in bases.keys() & config.keys():
                cls = _class_or_value(key, bases[key], config[key])
                if isinstance(cls, type):
                    classes.setdefault(key, cls)
                if key in classes:
                    del config[key]
                    if cls is not classes[key]:
                        _drop_others(config, key, classes[key])
        for name, value in self._values:
            # of flags, the last config has the path that --data names
            if name in _PATHS and self.configs[-1].get(name, value) != value:
                raise UserError(f"--data and --{name} name different images; give one of them")
        return classes


def whole_words(args: Iterable[str], switches: Container[str]) -> list[str]:
    """Joins each option and its value to one word; no option takes several values."""
    args = list(args)
    require_values(args)
    words = list[str]()
    for word in args:
        waits = words and words[-1] not in switches and _WAITS.fullmatch(words[-1])
        if waits and not word.startswith("--"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _with_class_paths(flags: list[str]) -> list[str]:
    """Names a function of the data that has arguments as jsonargparse names a class."""
    options = [flag.partition("=")[0] for flag in flags if flag.startswith("--data.")]
    owners = tuple(f"{option.rpartition('.')[0]}=" for option in options if option.count(".") > 1)
    return [
        flag.replace("=", ".class_path=", 1) if flag.startswith(owners) else flag for flag in flags
    ]


def read_config(path: str) -> Options:
    """Reads a config file, or YAML text that starts with a brace; an empty one is an empty dict."""
    name, text = "--config", path
    if not path.startswith("{"):
        try:
            name, text = path, Path(path).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            problem = first_sentence(error)
            raise UserError(f"--config: '{path}' cannot be read: {problem}") from error
    return flat(read_yaml(text, name) or {}, name)


def flat(values: object, source: str = "--config", group: str = "") -> Options:
    """Names options in full: ``model: {init_args: {arch: x}}`` becomes ``model.arch: x``.

    ``source`` says in messages where they are from.
    """
    if not isinstance(values, Mapping):
        got = " ".join(str(values).split())[:40]
        where = f", {group}" if group else ""
        raise UserError(f"{source}{where}: expected 'option: value', got '{got}'")
    options: Options = {}
    for key, value in values.items():
        parts = f"{group}.{key}".split(".")
        name = ".".join(part for part in parts if part not in ("", "class_path", "init_args"))
        is_nested = isinstance(value, dict) and name in (*_GROUPS, *_CLASS_KEYS)
        is_group = name in _GROUPS and name not in _CLASS_KEYS  # which no class stands for
        if is_nested or is_group or (value is None and name in _GROUPS):
            options |= flat({} if value is None else value, source, name)
        else:
            options[name] = value
    return options


def _name_data_module(config: Options, path_classes: Mapping[str, type]) -> None:
    """Replaces a folder, a file or hf:NAME by the data module that opens it."""
    name = str(config.get("data", ""))
    path = os.path.expanduser(name)
    if name.startswith("hf:"):
        config |= {"data": path_classes["hf"], "data.root": name.removeprefix("hf:")}
    elif os.path.exists(path):
        argument = "root" if os.path.isdir(path) else "file"
        config |= {"data": path_classes[argument], f"data.{argument}": name}


def _class_or_value(key: str, base: type, value: object) -> object:
    """Returns the class that a value names, or the value: ``false``, ``ddp``, a loss's function."""
    if not isinstance(value, str):
        return value
    cls = find_class(base, value)
    exists = "." in value and imported(value) is not None
    # a function may be a loss, which jsonargparse imports, or return a callback
    is_function = (key == "model.loss" and "." in value) or (key == _CALLBACKS and exists)
    if cls is None and key not in TRAINER_BASES and not is_function:
        if exists:
            raise UserError(f"--{key}: '{value}' is no class that derives from {base.__name__}")
        nearest = closest(value, [cls.__name__ for cls in candidates(base)])
        meant = f"did you mean {nearest}? " if nearest else ""
        kinds = f"folder, file or {base.__name__}" if key == "data" else base.__name__
        raise UserError(
            f"--{key}: there is no {kinds} '{value}'; {meant}your own is my_module.MyClass"
        )
    return cls or value


def _drop_others(config: Options, key: str, cls: type) -> None:
    """Drops a config's arguments of another class that this one does not accept, with a note."""
    accepted = class_parser(cls).get_defaults().as_dict()
    names = [name.removeprefix(f"{key}.") for name in config if name.startswith(f"{key}.")]
    others = [name for name in names if re.split(r"[.+]", name)[0] not in accepted]
    for name in others:
        del config[f"{key}.{name}"]
    if others:
        text = f"does not accept {listed(others)} of an earlier config"
        rank_zero_only(note)(f"--{key}: {cls.__name__} {text}")
