"""Arranges a command line: configs first, in one, with the class of each option that was named last; then flags.

jsonargparse reads from left to right. Where a class is named after its arguments, it drops those that the class before
does not accept, and keeps that class's defaults for those that both accept. Here it never meets a change of class.
"""

import os
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import yaml
from lightning.pytorch.utilities import rank_zero_only

from ..errors import UserError, listed, printable
from ..run.file_network import allow_module
from ..run.progress import note
from .classes import CLASS_OPTIONS, accepted, find_class, unknown_class
from .configs import dump, merged, nested, read_config

_KEYS = [key for key in CLASS_OPTIONS if key != "trainer.callbacks"]  # a list, in which a class follows another
_PATHS = {key: key.replace("model.", "model.init_args.").split(".") for key in _KEYS}
FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""

_WITHOUT_VALUE = re.compile(r"-h|--help|--help-all|--print_config.*|.+\.help")

Word = tuple[str, str | None]
"""An option and its value; the option is empty for a positional argument."""


def split(args: list[str]) -> Iterator[Word]:
    """Splits a command line as argparse does where no option takes more than one value."""
    words = iter(args)
    for word in words:
        option, equals, value = word.partition("=")
        if not word.startswith("-"):
            yield "", word
        elif equals or _WITHOUT_VALUE.fullmatch(option):
            yield option, value if equals else None
        else:
            yield option, next(words, None)


def joined(words: list[Word]) -> list[str]:
    """Writes options and values as a command line again."""
    return [f"{option}={value}" if option and value is not None else option or str(value) for option, value in words]


def values_of(option: str, args: list[str]) -> list[str]:
    """Returns the values that a command line gives to an option, in order."""
    return [value for name, value in split(args) if name == option and value is not None]


_HELP = "Module of your own that defines the checkpoint's model, network or data module; may be repeated."
IMPORT: dict[str, Any] = {"action": "append", "default": [], "help": _HELP}
"""The option ``--import`` of every command that opens a checkpoint."""


def import_modules(modules: list[str]) -> None:
    """Imports what ``--import`` names, so that a checkpoint's classes are found by their names."""
    for module in (name.strip() for names in modules for name in names.split(",")):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise UserError(f"--import: '{printable(module)}' cannot be imported from this folder: {error}") from error
        allow_module(module)


def arrange(args: list[str], defaults: dict[str, Any], folder: type) -> tuple[list[str], dict[str, Any]]:
    """Arranges a command line so that the order of configs, classes and arguments does not matter.

    Args:
        args: The command line.
        defaults: Classes of ``data`` and ``model`` where none is named, by path or with ``init_args``.
        folder: The data module for ``--data FOLDER``.

    Returns:
        The command line with one config in front, and that config.
    """
    configs, named, flags = list[dict[str, Any]](), list[dict[str, Any]](), list[Word]()
    for name, value in split(args):
        option = re.sub(r"\.init_args(?=\.)", "", name)
        key = option.removeprefix("--").removesuffix(".class_path")
        if value is None and not _WITHOUT_VALUE.fullmatch(option):
            raise UserError(f"{option} needs a value")
        if value is not None and option in ("-c", "--config"):
            configs.append(read_config(value))
        elif value is not None and key in _KEYS:
            named.append(nested({key: _literal(value)}))
        else:
            flags.append((option, value))
    config: dict[str, Any] = {}
    for number, source in enumerate(configs + named):
        config = _over(config, _with_specifications(source, folder), is_config=number < len(configs))
    if "model" in config and "model" not in defaults:
        raise UserError("there is no option '--model' here: the checkpoint says what the model is")
    _require_free(config, flags)
    for key, default in _with_specifications(defaults, folder).items():
        given = config.get(key, {})
        same = given.get("class_path", default["class_path"]) == default["class_path"]
        config[key] = merged(default, given) if same else given
    if "model" in defaults:
        _start_from_own_defaults(config["model"])
    return joined([("--config", dump(config)), *flags]), config


def _literal(value: str) -> Any:
    return yaml.safe_load(value) if re.match(r"(null|true|false)$|[\[{]", value) else value


def _with_specifications(config: dict[str, Any], folder: type) -> dict[str, Any]:
    """Writes every class of a config as ``class_path`` and ``init_args``; what is empty says nothing."""
    config = dict(config)
    for key, (*outer, last) in _PATHS.items():
        group = _at(config, outer)
        if isinstance(group, dict) and last in group:
            group[last] = _specification(key, group[last], folder)
    return {name: value for name, value in config.items() if value is not None}


def _specification(key: str, value: Any, folder: type) -> Any:
    if isinstance(value, str) and key == "data" and find_class(key, value) is None:
        if os.path.isdir(os.path.expanduser(value)):
            return {"class_path": f"{folder.__module__}.{folder.__name__}", "init_args": {"root": value}}
        if os.sep in value:
            raise UserError(f"--data: there is no folder '{value}'")
    if isinstance(value, str) and (not key.startswith("trainer.") or find_class(key, value)):
        value = {"class_path": value}
    if not isinstance(value, dict):
        return value
    spec = value if value.keys() <= {"class_path", "init_args", "dict_kwargs"} else {"init_args": value}
    if "class_path" not in spec:
        return spec
    name = str(spec["class_path"])
    if (cls := find_class(key, name)) is not None:
        return spec | {"class_path": f"{cls.__module__}.{cls.__qualname__}"}
    if key == "model.loss" and "." in name and not spec.get("init_args"):
        return name  # a function: by its class_path, jsonargparse would call it to make the loss
    raise UserError(unknown_class(key, name))


def _require_free(config: dict[str, Any], flags: list[Word]) -> None:
    """Refuses options that follow from others, which a parser would take and then override."""
    for name, source in FOLLOWS.items():
        key, _, argument = name.partition(".")
        if _at(config, [key, "init_args", argument]) is not None or any(option == f"--{name}" for option, _ in flags):
            raise UserError(f"--{name} cannot be given: it follows from {source}")


def _over(config: dict[str, Any], later: dict[str, Any], is_config: bool) -> dict[str, Any]:
    """Merges a later config or flag, which may change a class.

    Arguments that the new class does not accept go if they repeat the old class's defaults, as in a saved config. Others
    go with a note if a later config changes the class, such as a recipe; the parser refuses them if a flag does.
    """
    for key, path in _PATHS.items():
        before, now = _at(config, path), _at(later, path)
        if not (isinstance(before, dict) and isinstance(now, dict) and "class_path" in now and "init_args" in before):
            continue
        old, new = find_class(key, before.get("class_path")), find_class(key, now["class_path"])
        if new is None or new is old:
            continue
        defaults = accepted(old) if old is not None else {}
        foreign = {name: value for name, value in before["init_args"].items() if name not in accepted(new)}
        given = [name for name, value in foreign.items() if name not in defaults or value != defaults[name]]
        if given and is_config:
            rank_zero_only(note)(f"--{key}: {new.__name__} does not accept {listed(given)} of an earlier config")
        for name in foreign:
            if is_config or name not in given:
                del before["init_args"][name]
    return merged(config, later)


def _at(config: Any, path: list[str]) -> Any:
    for name in path:
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _start_from_own_defaults(model: dict[str, Any]) -> None:
    """Adds the defaults of classes other than the model's own, such as another optimizer, whose arguments would stay."""
    for name, default in accepted(find_class("model", model["class_path"]) or object).items():
        spec, key = _at(model, ["init_args", name]), f"model.{name}"
        if key in _KEYS and isinstance(spec, dict) and isinstance(default, dict) and "class_path" in spec:
            cls = find_class(key, spec["class_path"])
            if cls is not None and cls is not find_class(key, default["class_path"]):
                replaced = default.get("init_args", {})
                own = {option: value for option, value in accepted(cls).items() if option in replaced}
                spec["init_args"] = own | spec.get("init_args", {})
