"""Arranges a command line: its configs first, in one, with the class of each option that was named last; then flags.

jsonargparse reads from left to right. Where a class is named after its arguments, it drops those that the class before
does not accept, and keeps that class's defaults for those that both accept. Here it never meets a change of class.
"""

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities import rank_zero_only

from ..errors import UserError, first_sentence, listed, printable
from ..run.progress import note
from ..run.settings import allow_module
from .classes import CLASS_OPTIONS, accepted, find_class, path_of, unknown_class

Options = dict[str, Any]
"""Options by their full names, such as ``model.optimizer.lr``; ``model.optimizer`` itself is the class."""

CLASS_KEYS = [
    key for key in CLASS_OPTIONS if key != "trainer.callbacks"
]  # a list, in which a class follows another
_GROUPS = ("trainer", "callbacks", *CLASS_KEYS)

FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""

_WITHOUT_VALUE = re.compile(r"-h|--help|--help-all|--print_config.*|.+\.help")


def whole_words(args: list[str]) -> list[str]:
    """Writes each option and its value as one word, as argparse reads them where no option takes more than one value."""
    words, rest = list[str](), iter(args)
    for word in rest:
        if word.startswith("-") and "=" not in word and not _WITHOUT_VALUE.fullmatch(word):
            if (value := next(rest, None)) is None:
                raise UserError(f"{word} needs a value")
            word = f"{word}={value}"
        words.append(word)
    return words


def values_of(option: str, args: list[str]) -> list[str]:
    """Returns the values that a command line gives to an option, in order."""
    return [
        word.removeprefix(f"{option}=")
        for word in whole_words(args)
        if word.startswith(f"{option}=")
    ]


_HELP = "Module of your own that defines the checkpoint's model, network or data module; may be repeated."
IMPORT: dict[str, Any] = {"action": "append", "default": [], "help": _HELP}
"""The option ``--import`` of every command that opens a checkpoint."""


def import_modules(modules: list[str]) -> None:
    """Imports what ``--import`` names, so that a checkpoint's classes are found by their names."""
    for module in (name.strip() for names in modules for name in names.split(",")):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(
                f"--import: '{printable(module)}' cannot be imported from this folder: {error}"
            ) from error
        allow_module(module)


def arrange(
    args: list[str], classes: dict[str, Any], of_path: dict[str, type]
) -> tuple[list[str], Options]:
    """Arranges a command line so that the order of configs, classes and arguments does not matter.

    ``classes`` are those of ``data`` and ``model`` where nobody names one; ``of_path`` are those for ``--data PATH``,
    by the argument that takes the path: ``root`` of a folder, ``file`` of a file. Returns the command line with one config
    in front, and the options in that config.
    """
    configs, named, flags = list[Options](), Options(), list[str]()
    for word in whole_words(args):
        option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        option = option.replace(".init_args.", ".")
        key = option.removeprefix("--").removesuffix(".class_path")
        if option in ("-c", "--config"):
            configs.append(read_config(value))
        elif key in CLASS_KEYS:
            named[key] = (
                _read(value, option) if re.match(r"(null|true|false)$|[\[{]", value) else value
            )
        else:
            flags.append(f"{option}{equals}{value}")
    options = Options()
    for config in configs:
        _merge(options, _with_classes(config, of_path), is_config=True)
    _merge(options, _with_classes(flat(named), of_path), is_config=False)
    given = {*options, *(flag.removeprefix("--").partition("=")[0] for flag in flags)}
    if "model" not in classes and any(name.partition(".")[0] == "model" for name in given):
        raise UserError("there is no option '--model' here: the checkpoint says what the model is")
    for name, source in FOLLOWS.items():  # a parser would take them and then override them
        if name in given and options.get(name, "") is not None:
            raise UserError(f"--{name} cannot be given: it follows from {source}")
    known = _with_classes(flat(classes), of_path)
    same = {key for key in classes if options.get(key, known[key]) is known[key]}
    options = {
        name: value for name, value in known.items() if name.partition(".")[0] in same
    } | options
    if "model" in classes:
        options = _own_defaults(options) | options
    return [f"--config={dump(options)}", *flags], options


def _with_classes(options: Options, of_path: dict[str, type]) -> Options:
    """Finds the classes that options name; a folder or a file stands for the data module that reads it."""
    for key in CLASS_KEYS:
        if (name := options.get(key)) is None:
            continue
        if cls := find_class(key, name):
            options[key] = cls
        elif key == "data" and os.path.exists(path := os.path.expanduser(str(name))):
            argument = "root" if os.path.isdir(path) else "file"
            options |= {"data": of_path[argument], f"data.{argument}": name}
        # others are such as ``ddp``, or a loss that is a function, which jsonargparse would call if it had arguments
        elif _arguments(options, key) or not (
            key.startswith("trainer.") or (key == "model.loss" and "." in str(name))
        ):
            raise UserError(unknown_class(key, str(name)))
    return options


def _merge(options: Options, later: Options, is_config: bool) -> None:
    """Adds a later config, or the classes that flags name, to options; ``name+`` appends to a list.

    What a new class does not accept is dropped where it repeats the old one's default, as in a saved config. The rest is
    dropped with a note if a config names the new class, such as a recipe; if a flag does, the parser refuses it.
    """
    for key in CLASS_KEYS:
        old: Any = options.get(key)
        if (new := later.get(key, old)) is old:
            continue
        known = accepted(new) if isinstance(new, type) else {}
        defaults = flat({key: accepted(old)}) if isinstance(old, type) else {}
        foreign = {
            name: argument
            for name, argument in _arguments(options, key).items()
            if argument not in known
        }
        changed = {
            name: foreign[name] for name in foreign if options[name] != defaults.get(name, ...)
        }
        given = changed if isinstance(new, type) else {}
        for name in foreign if is_config else foreign.keys() - given.keys():
            del options[name]
        if given and is_config:
            lost = listed(dict.fromkeys(given.values()))
            rank_zero_only(note)(
                f"--{key}: {new.__name__} does not accept {lost} of an earlier config"
            )
    for name, value in later.items():
        option = name.removesuffix("+")
        before = options.get(option)
        if isinstance(before, dict) and isinstance(value, dict):
            value = before | value
        elif option != name:
            if isinstance(before, type):
                arguments = {
                    argument: options.pop(full)
                    for full, argument in _arguments(options, option).items()
                }
                before = {"class_path": path_of(before), "init_args": arguments}
            value = [*_listed(before), *_listed(value)]
        options[option] = value


def _arguments(options: Options, key: str) -> dict[str, str]:
    """Returns the options of a class by their full names, with the argument of the class that each belongs to."""
    names = (name for name in options if name.startswith(f"{key}."))
    return {name: name.removeprefix(f"{key}.").partition(".")[0] for name in names}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _own_defaults(options: Options) -> Options:
    """Returns defaults of classes other than the model's own, such as another optimizer, whose arguments would stay."""
    found: Options = {}
    for name, default in accepted(options["model"]).items():
        key, cls = f"model.{name}", options.get(f"model.{name}")
        if (
            isinstance(cls, type)
            and isinstance(default, dict)
            and cls is not find_class(key, default["class_path"])
        ):
            replaced = default.get("init_args", {})
            found |= {
                f"{key}.{own}": value for own, value in accepted(cls).items() if own in replaced
            }
    return found


class _Loader(yaml.SafeLoader):
    """Reads ``1e-3`` as the number that it is in YAML 1.2, a date as text, and refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        given = set[str]()
        for key, _ in node.value:
            if (name := str(key.value).removesuffix("+")) in given - {"<<"}:
                raise yaml.constructor.ConstructorError(
                    None, None, f"'{name}' is given twice", key.start_mark
                )
            given.add(name)
        return super().construct_mapping(node, deep)


_NUMBER = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


def _read(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{name}{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{name} cannot be read: {first_sentence(error)}") from error


def read_config(path: str) -> Options:
    """Reads a config file, or YAML text that starts with a brace; an empty one is an empty dict."""
    name, text = ("--config", path) if path.lstrip().startswith("{") else (path, None)
    try:
        values = _read(text or Path(path).read_text("utf-8-sig"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: '{path}' cannot be read: {first_sentence(error)}") from error
    if values is not None and not isinstance(values, dict):
        raise UserError(f"{name}: expected 'option: value', got '{str(values)[:40]}'")
    return flat(values or {})


def flat(values: dict[Any, Any], group: str = "") -> Options:
    """Names options in full, as flags do: ``model: {init_args: {arch: x}}`` becomes ``model.arch: x``."""
    options: Options = {}
    for key, value in values.items():
        parts = f"{group}.{key}".split(".")
        name = ".".join(part for part in parts if part not in ("", "class_path", "init_args"))
        if isinstance(value, dict) and name in _GROUPS:
            found = flat(value, name)
        elif value is not None and name in ("trainer", "callbacks"):
            raise UserError(f"--config: {name} must hold options, got '{value}'")
        else:  # a group without options says nothing
            found = {} if value is None and "." not in name and name in _GROUPS else {name: value}
        for twice in {one.removesuffix("+") for one in options} & {
            one.removesuffix("+") for one in found
        }:
            raise UserError(f"--config: '{twice}' is given twice")
        options |= found
    return options


def dump(options: Options) -> str:
    """Formats options as YAML on one line, with every text quoted so that none is read as a number."""
    config: dict[str, Any] = {}
    for name, value in sorted(options.items()):  # a class comes before its arguments
        (*groups, last), place = name.split("."), config
        for depth, group in enumerate(groups, start=1):
            place = place.setdefault(group, {})
            if ".".join(groups[:depth]) in CLASS_KEYS and last != "dict_kwargs":
                place = place.setdefault("init_args", {})
        place[last] = {"class_path": path_of(value)} if isinstance(value, type) else value
    return yaml.safe_dump(
        config, default_style='"', default_flow_style=True, width=10**9, allow_unicode=True
    ).strip()
