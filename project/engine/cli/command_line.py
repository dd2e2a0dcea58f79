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

from ..errors import UserError, listed, printable
from ..run.progress import note
from .class_parser import FOLLOWS, ClassParser
from .classes import Bases, accepted, candidates, find_class, unknown_class
from .config import CLASS_KEYS, Options, flat, path_of, read_config, read_yaml
from .parser import suggestion

_WITHOUT_VALUE = re.compile(r"-h|--help|--help-all|--print_config.*|.+\.help")


@dataclass
class CommandLine:
    """The words of a command line, before classes are resolved.

    Attributes:
        words: Each option with its value as one word, and positional arguments.
        configs: The configs, as options by their full names.
        classes: The classes that flags name, by option.
        rest: The other words.
    """

    words: list[str]
    configs: list[Options] = field(default_factory=list)
    classes: Options = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, args: Iterable[str]) -> "CommandLine":
        """Reads configs, and separates classes from other words."""
        line = cls(whole_words(args))
        for word in line.words:
            if word != word.encode(errors="replace").decode():
                raise UserError(f"'{printable(word)}' is not UTF-8; rename the file or folder")
            option, equals, value = word.partition("=")
            option = option.replace(".init_args.", ".")
            key = option.removeprefix("--").removesuffix(".class_path")
            if option in ("-c", "--config"):
                line.configs.append(read_config(value))
            elif option.startswith("--") and key in CLASS_KEYS:
                is_yaml = re.match(r"(null|true|false)$|[\[{]", value)
                line.classes[key] = read_yaml(value, option) if is_yaml else value
            else:
                line.rest.append(f"{option}{equals}{value}")
        return line

    def values(self, option: str) -> list[str]:
        """Returns the values that flags give to an option, in order."""
        start = f"{option}="
        return [word.removeprefix(start) for word in self.words if word.startswith(start)]

    @property
    def positionals(self) -> list[str]:
        """Returns the arguments without a name."""
        return [word for word in self.rest if not word.startswith("-")]

    def options(
        self, bases: Bases, defaults: Mapping[str, Any], of_path: Mapping[str, type]
    ) -> Options:
        """Merges the configs and classes of the line, so that their order does not matter.

        ``defaults`` are the classes of ``data`` and ``model`` if none is named; ``of_path`` are the data modules
        for ``--data PATH``, by the argument that takes the path.
        """
        options = Options()
        for config in self.configs:
            _merge(options, _with_classes(config, bases, of_path), is_config=True)
        _merge(options, _with_classes(flat(self.classes), bases, of_path), is_config=False)
        for name, source in FOLLOWS.items():  # a parser would accept them and then override them
            if options.get(name) is not None or self.values(f"--{name}"):
                raise UserError(f"--{name} cannot be given: it follows from {source}")
        known = _with_classes(flat(dict(defaults)), bases, of_path)
        same = [key for key in defaults if options.get(key, known[key]) is known[key]]
        kept = {name: value for name, value in known.items() if name.partition(".")[0] in same}
        return kept | options

    def names(self, options: Options) -> set[str]:
        """Returns the names of all options that are given."""
        flags = [word[2:].partition("=")[0] for word in self.rest if word.startswith("--")]
        return {name.removesuffix("+") for name in [*options, *flags]}


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


def complete_classes(options: Options, bases: Bases) -> Options:
    """Returns all classes, also those that the model has by default, such as its optimizer.

    If another is named, adds its own defaults to the options: jsonargparse would keep the arguments of the model's.
    """
    classes: Options = {key: cls for key, cls in options.items() if isinstance(cls, type)}
    for name, default in accepted(classes["model"]).items() if "model" in classes else ():
        key = f"model.{name}"
        if key in bases and isinstance(default, dict):
            usual = find_class(bases[key], default["class_path"])
            cls = classes.setdefault(key, usual) if key not in options else options[key]
            if isinstance(cls, type) and cls is not usual:
                arguments = default.get("init_args", {})
                for argument, value in accepted(cls).items():
                    if argument in arguments:
                        options.setdefault(f"{key}.{argument}", value)
    return classes


def require_known(
    names: Iterable[str], classes: Options, parser: ClassParser, bases: Bases
) -> None:
    """Raises a UserError that suggests the closest name if an option is unknown."""
    arguments = {key: accepted(cls) for key, cls in classes.items() if cls}
    arguments |= {key: accepted(cls) for cls, key in parser.callbacks.items()}
    known = [*parser.known(), *(f"{key}.{name}" for key in arguments for name in arguments[key])]
    for name in names:
        key = next((key for key in reversed(list(bases)) if name.startswith(f"{key}.")), "")
        argument = name.removeprefix(f"{key}.").partition(".")[0]
        if not key and name not in known and not _is_nested(name, known):
            raise UserError(f"there is no option '--{name}'{suggestion(name, known)}")
        if arguments.get(key) and argument not in (*arguments[key], "dict_kwargs"):
            others = [cls.__name__ for cls in candidates(bases[key]) if argument in accepted(cls)]
            advice = (
                f"; it is an option of {listed(others, 3)}" if others else suggestion(name, known)
            )
            cls = classes[key].__name__
            raise UserError(f"--{name}: {cls} has no option '{argument}'{advice}")


def _is_nested(name: str, known: Iterable[str]) -> bool:
    """Returns True for an argument of a class that an option such as ``trainer.plugins`` takes."""
    options = [option for option in known if "." in option and not option.endswith(".help")]
    parents = [option for option in options if name.startswith(f"{option}.")]
    # an option with options of its own knows them
    return any(not any(other.startswith(f"{one}.") for other in options) for one in parents)


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
