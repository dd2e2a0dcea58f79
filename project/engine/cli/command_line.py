"""Arranges a command line: its configs first, in one, with the class of each option that was named last; then flags.

jsonargparse reads from left to right. If a class is named after its arguments, it drops those that the previous
class does not accept, and keeps that class's defaults for those that both accept. Here it never meets a change of
class.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from ..errors import UserError, listed
from ..run.progress import note
from .class_parser import FOLLOWS, ClassParser
from .classes import Bases, accepted, candidates, find_class, unknown_class
from .config import CLASS_KEYS, Options, dump, flat, path_of, read_config, read_yaml
from .parser import suggestion

_WITHOUT_VALUE = re.compile(r"-h|--help|--help-all|--print_config.*|.+\.help")


@dataclass
class CommandLine:
    """The words of a command line, before classes are resolved.

    Attributes:
        words: Each option with its value as one word, and positional arguments.
        positionals: Arguments without a name.
        configs: The configs, as options by their full names.
        classes: The classes that flags name, by option.
        flags: The other flags.
    """

    words: list[str]
    positionals: list[str] = field(default_factory=list)
    configs: list[Options] = field(default_factory=list)
    classes: Options = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, args: Iterable[str]) -> "CommandLine":
        """Reads configs, and separates classes from other flags."""
        line = cls(whole_words(args))
        for word in line.words:
            option, equals, value = word.partition("=")
            option = option.replace(".init_args.", ".")
            key = option.removeprefix("--").removesuffix(".class_path")
            if not word.startswith("-"):
                line.positionals.append(word)
            elif option in ("-c", "--config"):
                line.configs.append(read_config(value))
            elif key in CLASS_KEYS:
                is_yaml = re.match(r"(null|true|false)$|[\[{]", value)
                line.classes[key] = read_yaml(value, option) if is_yaml else value
            else:
                line.flags.append(f"{option}{equals}{value}")
        return line

    def values(self, option: str) -> list[str]:
        """Returns the values that flags give to an option, in order."""
        start = f"{option}="
        return [word.removeprefix(start) for word in self.words if word.startswith(start)]

    def arrange(
        self, bases: Bases, defaults: Mapping[str, Any], of_path: Mapping[str, type]
    ) -> tuple[list[str], Options]:
        """Arranges the line so that the order of configs, classes and arguments does not matter.

        ``defaults`` are the classes of ``data`` and ``model`` if none is named; ``of_path`` are the data modules
        for ``--data PATH``, by the argument that takes the path. Returns the command line with one config in front,
        and the options in that config.
        """
        options = Options()
        for config in self.configs:
            _merge(options, _with_classes(config, bases, of_path), is_config=True)
        _merge(options, _with_classes(flat(self.classes), bases, of_path), is_config=False)
        names = {*options, *(flag.removeprefix("--").partition("=")[0] for flag in self.flags)}
        for name, source in FOLLOWS.items():  # a parser would accept them and then override them
            if name in names and options.get(name, "") is not None:
                raise UserError(f"--{name} cannot be given: it follows from {source}")
        known = _with_classes(flat(dict(defaults)), bases, of_path)
        same = [key for key in defaults if options.get(key, known[key]) is known[key]]
        kept = {name: value for name, value in known.items() if name.partition(".")[0] in same}
        options = kept | options
        if "model" in options:
            options = _own_defaults(options, bases) | options
        return [f"--config={dump(options)}", *self.flags, *self.positionals], options


def whole_words(args: Iterable[str]) -> list[str]:
    """Joins each option and its value to one word; no option takes several values."""
    words, rest = list[str](), iter(args)
    for word in rest:
        if word.startswith("-") and "=" not in word and not _WITHOUT_VALUE.fullmatch(word):
            if (value := next(rest, None)) is None:
                raise UserError(f"{word} needs a value")
            word = f"{word}={value}"
        words.append(word)
    return words


def require_known(
    names: Iterable[str], options: Options, parser: ClassParser, bases: Bases
) -> None:
    """Raises a UserError that suggests the closest option if a name is neither known nor an argument of a class."""
    classes = _default_classes(options, bases) | options
    arguments = {key: accepted(cls) for key, cls in classes.items() if isinstance(cls, type)}
    arguments |= {key: accepted(cls) for cls, key in parser.callbacks.items()}
    known = [*parser.known(), *(f"{key}.{name}" for key in arguments for name in arguments[key])]
    for name in names:
        key = next((key for key in reversed(list(bases)) if name.startswith(f"{key}.")), "")
        if not key and name not in known:
            raise UserError(f"there is no option '--{name}'{suggestion(name, known)}")
        argument = name.removeprefix(f"{key}.").partition(".")[0]
        allowed = arguments.get(key)
        if allowed and argument not in (*allowed, "dict_kwargs"):
            others = [cls.__name__ for cls in candidates(bases[key]) if argument in accepted(cls)]
            advice = (
                f"; it is an option of {listed(others, 3)}" if others else suggestion(name, known)
            )
            cls = classes[key].__name__
            raise UserError(f"--{name}: {cls} has no option '{argument}'{advice}")


def _default_classes(options: Options, bases: Bases) -> Options:
    """Returns the classes that the model's own defaults name, such as its optimizer, if options name none."""
    model = options.get("model")
    defaults = accepted(model) if isinstance(model, type) else {}
    classes = Options()
    for name, default in defaults.items():
        key = f"model.{name}"
        if key in bases and isinstance(default, dict) and key not in options:
            classes[key] = find_class(bases[key], default["class_path"])
    return {key: cls for key, cls in classes.items() if cls}


def _with_classes(options: Options, bases: Bases, of_path: Mapping[str, type]) -> Options:
    """Finds the classes that options name; a folder or a file stands for the data module that reads it."""
    for key in CLASS_KEYS:
        if (name := options.get(key)) is None:
            continue
        if cls := find_class(bases[key], name):
            options[key] = cls
        elif key == "data" and os.path.exists(path := os.path.expanduser(str(name))):
            argument = "root" if os.path.isdir(path) else "file"
            options |= {"data": of_path[argument], f"data.{argument}": name}
        # others are such as ``ddp``, or a loss that is a function, which has no arguments
        elif _arguments(options, key) or not (
            key.startswith("trainer.") or (key == "model.loss" and "." in str(name))
        ):
            raise UserError(unknown_class(key, bases[key], str(name)))
    return options


def _merge(options: Options, later: Options, is_config: bool) -> None:
    """Adds a later config, or the classes that flags name, to options; ``name+`` appends to a list.

    What a new class does not accept is dropped if it repeats the old one's default, as in a saved config. The rest
    is dropped with a note if a config names the new class, such as a recipe; if a flag does, the parser refuses it.
    """
    for key in CLASS_KEYS:
        old: Any = options.get(key)
        if (new := later.get(key, old)) is old:
            continue
        allowed = accepted(new) if isinstance(new, type) else {}
        defaults = flat({key: accepted(old)}) if isinstance(old, type) else {}
        arguments = _arguments(options, key).items()
        foreign = {name: argument for name, argument in arguments if argument not in allowed}
        changed = {
            name: argument
            for name, argument in foreign.items()
            if isinstance(new, type) and options[name] != defaults.get(name, ...)
        }
        for name in foreign if is_config else foreign.keys() - changed.keys():
            del options[name]
        if changed and is_config:
            lost = listed(dict.fromkeys(changed.values()))
            text = f"--{key}: {new.__name__} does not accept {lost} of an earlier config"
            rank_zero_only(note)(text)
    for name, value in later.items():
        option = name.removesuffix("+")
        before = options.get(option)
        if isinstance(before, dict) and isinstance(value, dict):
            value = before | value
        elif option != name:
            if isinstance(before, type):
                arguments = _arguments(options, option).items()
                init_args = {argument: options.pop(full) for full, argument in arguments}
                before = {"class_path": path_of(before), "init_args": init_args}
            value = [*_as_list(before), *_as_list(value)]
        options[option] = value


def _arguments(options: Options, key: str) -> dict[str, str]:
    """Returns the options of a class by their full names, with the argument of the class that each belongs to."""
    names = (name for name in options if name.startswith(f"{key}."))
    return {name: name.removeprefix(f"{key}.").partition(".")[0] for name in names}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _own_defaults(options: Options, bases: Bases) -> Options:
    """Returns defaults of classes other than the model's own, such as another optimizer.

    Otherwise jsonargparse keeps the arguments of the model's own.
    """
    defaults = Options()
    for name, default in accepted(options["model"]).items():
        key = f"model.{name}"
        cls = options.get(key)
        if not (isinstance(cls, type) and isinstance(default, dict)):
            continue
        if cls is not find_class(bases[key], default["class_path"]):
            kept = accepted(cls).items()
            replaced = default.get("init_args", {})
            defaults |= {f"{key}.{name}": value for name, value in kept if name in replaced}
    return defaults
