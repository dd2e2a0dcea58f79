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
from .classes import CLASS_OPTIONS, accepted, class_path, find_class, unknown_class
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
        if not word.startswith("-") or re.fullmatch(r"-[\d.].*", word):
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


def with_name(option: str, args: list[str]) -> list[str]:
    """Puts an option's name before the first positional argument, as in ``evaluate best.ckpt``."""
    words = list(split(args))
    first = next((number for number, word in enumerate(words) if not word[0]), None)
    if first is not None and not any(name == option for name, _ in words):
        words[first] = option, words[first][1]
    return joined(words)


def arrange(args: list[str], defaults: dict[str, Any], folder: type) -> tuple[list[str], dict[str, Any]]:
    """Arranges a command line so that the order of configs, classes and arguments does not matter.

    Args:
        args: The command line.
        defaults: Classes of ``data`` and ``model`` where none is named, by path or with ``init_args``.
        folder: The data module for ``--data FOLDER``.

    Returns:
        The command line with one config in front, and defaults for the parser: classes of the model's arguments, so that
        none of the default optimizer's arguments goes to another optimizer.
    """
    configs, named, flags = list[dict[str, Any]](), list[dict[str, Any]](), list[Word]()
    for name, value in split(args):
        option = re.sub(r"\.init_args(?=\.)", "", name)
        key = option.removeprefix("--").removesuffix(".class_path")
        if value is None:
            if option and not _WITHOUT_VALUE.fullmatch(option):
                raise UserError(f"{option} needs a value")
            flags.append((option, value))
        elif option in ("-c", "--config"):
            configs.append(read_config(value))
        elif option.startswith("--") and key in _KEYS:
            named.append(nested({key: _literal(value)}))
        else:
            flags.append((option, value))
    config: dict[str, Any] = {}
    for sources, is_config in ((configs, True), (named, False)):
        for source in sources:
            config = _over(config, _with_specifications(source, folder), is_config)
    if "model" in config and "model" not in defaults:
        raise UserError("there is no option '--model' here: the checkpoint says what the model is")
    _require_free(config, flags)
    for key, default in defaults.items():
        spec = {"class_path": default} if isinstance(default, str) else default
        spec = spec | {"class_path": class_path(key, spec["class_path"])}
        given = config.get(key) or {}
        same = given.get("class_path", spec["class_path"]) == spec["class_path"]
        config[key] = merged(spec, given) if same else given
    classes = _classes_within(config["model"], flags) if "model" in defaults else {}
    return joined([("--config", dump(config)), *flags]), classes


def _literal(value: str) -> Any:
    return yaml.safe_load(value) if re.match(r"(null|true|false)$|[\[{]", value) else value


def _with_specifications(config: dict[str, Any], folder: type) -> dict[str, Any]:
    """Writes every class of a config as ``class_path`` and ``init_args``; what is empty says nothing."""
    for key, (*outer, last) in _PATHS.items():
        group = _at(config, outer)
        if isinstance(group, dict) and last in group:
            group[last] = _specification(key, group[last], folder)
    return {name: value for name, value in config.items() if value is not None}


def _specification(key: str, value: Any, folder: type) -> Any:
    if isinstance(value, str) and value.endswith((".yaml", ".yml")):
        value = read_config(value)
    if isinstance(value, str) and key == "data" and find_class(key, value) is None:
        if os.path.isdir(os.path.expanduser(value)):
            return {"class_path": class_path(key, folder.__name__), "init_args": {"root": value}}
        if os.sep in value:
            raise UserError(f"--data: there is no folder '{value}'")
    if isinstance(value, str):
        value = {"class_path": value} if not key.startswith("trainer.") or find_class(key, value) else value
    if not isinstance(value, dict):
        return value
    spec = value if value.keys() <= {"class_path", "init_args", "dict_kwargs"} else {"init_args": value}
    return _with_class(key, spec) if "class_path" in spec else spec


def _with_class(key: str, spec: dict[str, Any]) -> Any:
    name = str(spec["class_path"])
    if find_class(key, name) is not None:
        return spec | {"class_path": class_path(key, name)}
    if "." not in name or key not in ("model.loss", "model.lr_scheduler", "model.optimizer"):
        raise UserError(unknown_class(key, name))
    if key != "model.loss":
        return spec
    if spec.get("init_args"):
        raise UserError(f"--model.loss: '{name}' is no subclass of torch.nn.Module; functions take no options")
    return name  # a function: by its class_path, jsonargparse would call it to make the loss


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


def _classes_within(model: dict[str, Any], flags: list[Word]) -> dict[str, Any]:
    """Returns the model with those classes of its arguments that are not its own defaults, and what is given to them."""
    defaults, named = accepted(find_class("model", model["class_path"]) or object), dict[str, Any]()
    for key in (key for key in _KEYS if key.startswith("model.")):
        name, start = key.removeprefix("model."), f"--{key}."
        spec, default = _at(model, ["init_args", name]), defaults.get(name)
        if not isinstance(spec, dict) or "class_path" not in spec:
            continue
        cls = find_class(key, spec["class_path"])
        if not isinstance(default, dict) or cls is not find_class(key, default["class_path"]):
            by_flag = {option.removeprefix(start): value for option, value in flags if option.startswith(start)}
            given = spec.get("init_args", {}) | by_flag
            known = {name: value for name, value in given.items() if cls is not None and name in accepted(cls)}
            named[name] = {"class_path": spec["class_path"], "init_args": known}
    return {"model": {"class_path": model["class_path"], "init_args": named}}
