"""Puts a command line in order: configs first, then classes with what configs give to them, then flags.

jsonargparse reads from left to right. Where a class is named after its arguments, it silently drops what the class
before did not accept, and keeps what that class had by default. It never meets such a change here.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentParser

from ..errors import UserError
from .arguments import WITHOUT_VALUE, Argument, split_arguments
from .class_option import ClassOption, require_free
from .classes import accepted, find_class, no_class, no_such_option
from .config_file import Config, parse_config, read_config

_CALLBACKS = ClassOption("trainer.callbacks")


class Said(NamedTuple):
    """What a config or a flag says of an option that takes a class.

    Attributes:
        key: The option, without dashes.
        value: What it says.
        config: The config; for a flag one without lines.
        path: Where in it.
    """

    key: str
    value: Any
    config: Config
    path: tuple[str, ...]


def arrange(args: list[str], parser: ArgumentParser, keys: list[str]) -> tuple[list[str], list[Config]]:
    """Puts a command line in an order in which nothing that was given is dropped.

    Args:
        args: The command line.
        parser: Its parser; what an unnamed class has by default leaves the parser's defaults where another is named.
        keys: The options of the parser that take a class, in the order of ``CLASS_OPTIONS``.

    Returns:
        The command line with the configs' text in it, and the configs.

    Raises:
        UserError: A config cannot be read, or an argument is not the class's.
    """
    arguments = list(split_arguments(args))
    for name, value in arguments:
        if value is None and name not in WITHOUT_VALUE and not name.endswith(".help"):
            raise UserError(f"{name} needs a value")
    configs = [_config(argument) for argument in arguments if argument.option in ("-c", "--config")]
    said = [one for config in configs for one in _said_by_config(config, keys)]
    flags = []
    for flag in (_short(argument) for argument in arguments if argument.option not in ("-c", "--config")):
        key = flag.option.removeprefix("--").removesuffix(".class_path")
        if key in keys and flag.option.startswith("--") and flag.value is not None:
            said += _said_by_flag(key, flag.value, keys)
        else:
            flags.append(flag)  # what is given to a class stays, and comes after the class
    options = _class_options(keys, said, parser)
    for option in (*options.values(), _CALLBACKS):
        _require_accepted(option, flags)
    classes = _classes(options, parser)
    texts = [config.values for config in configs if config.values] + ([classes] if classes else [])
    return [f"--config={_dump(values)}" for values in texts] + [str(flag) for flag in flags], configs


def _config(argument: Argument) -> Config:
    text = argument.value or ""
    config = parse_config(text, "--config") if text.lstrip().startswith("{") else read_config(text)
    _require_groups(config)
    return config


def _require_groups(config: Config) -> None:
    """Refuses a value in place of a group's options, which the parser would pass over; an empty group says nothing."""
    for group in ("trainer", "callbacks"):
        value = config.values.get(group, {})
        if value is None:
            del config.values[group]
        elif not isinstance(value, dict):
            raise UserError(f"{config.place(group)}: {group} is a group of options, got '{value}'")
    callbacks = config.values.get("callbacks", {})
    callbacks.update({name: False for name, value in callbacks.items() if value is None})


def _said_by_config(config: Config, keys: list[str]) -> Iterator[Said]:
    """Takes what a config says of classes out of it."""
    for key in reversed(keys):  # what is within a class before the class
        *outer, last = key.split(".")
        values, path = config.values, list[str]()
        for name in outer:
            values, path = _below(values.get(name)), [*path, name]
            if "init_args" in values:
                values, path = _below(values["init_args"]), [*path, "init_args"]
        if last not in values:
            continue
        value = values.pop(last)
        if isinstance(value, str) and value.endswith((".yaml", ".yml")):
            yield from _said_by_file(key, read_config(str(Path(config.name).parent / value)), keys)
        elif value is not None or outer:  # an empty group says nothing
            yield Said(key, value, config, (*path, last))


def _said_by_flag(key: str, value: str, keys: list[str]) -> Iterator[Said]:
    if value.lstrip().startswith("{"):
        yield from _said_by_file(key, parse_config(value, f"--{key}"), keys)
    elif value.endswith((".yaml", ".yml")):
        yield from _said_by_file(key, read_config(value), keys)
    else:
        parsed = yaml.safe_load(value) if value in ("null", "true", "false") or value.startswith("[") else value
        yield Said(key, parsed, Config(f"--{key}", {}), ())


def _said_by_file(key: str, config: Config, keys: list[str]) -> Iterator[Said]:
    """What a config says that is about one option alone."""
    values, path = config.values, tuple(key.split("."))
    for name in reversed(path):
        values = {name: values}
    yield from _said_by_config(Config(config.name, values, {(*path, *at): n for at, n in config.lines.items()}), keys)


def _below(values: Any) -> dict[str, Any]:
    return values if isinstance(values, dict) else {}


def _class_options(keys: list[str], said: list[Said], parser: ArgumentParser) -> dict[str, ClassOption]:
    options: dict[str, ClassOption] = {}
    for key in keys:
        outer = options.get(key.rpartition(".")[0])
        option = options[key] = ClassOption(key, _default(key, outer, parser))
        for one in said:
            if one.key == key:
                option.take(one.value, one.config, *one.path)
    return options


def _default(key: str, outer: ClassOption | None, parser: ArgumentParser) -> str | None:
    """The class that an option takes by default: the command's, or that of the class that has the option."""
    if outer is None:
        default = parser.get_default(key)
    else:
        cls = outer.cls()
        default = accepted(cls).get(key.rpartition(".")[2]) if cls is not None else None
    return default if isinstance(default, str) else default.get("class_path") if default else None


def _classes(options: dict[str, ClassOption], parser: ArgumentParser) -> dict[str, Any]:
    """What a config says that names the classes, with all that configs give to them."""
    classes: dict[str, Any] = {}
    for key, option in reversed(options.items()):
        *outer, last = key.split(".")
        if not option.is_given:
            continue
        if ".".join(outer) in options:
            options[".".join(outer)].hold(option)
            continue
        inner = [options[name] for name in options if name.startswith(f"{key}.")]
        replaced = {one.key.rpartition(".")[2]: None for one in inner if one.is_given and one.is_replaced()}
        if replaced or (inner and option.is_replaced()):  # without one, the parser would mix in the old class's own
            parser.set_defaults({key: {**option.spec(), "init_args": replaced}})
        elif option.is_replaced():
            parser.set_defaults({key: None})
        group = classes.setdefault(outer[0], {}) if outer else classes
        group[last] = option.settle()
    return classes


def _require_accepted(option: ClassOption, flags: list[Argument]) -> None:
    """Refuses flags that the class does not accept, all in one place, whatever their order.

    Where a list of classes is made by ``+=``, what follows a class is given to that one.
    """
    if option.key == "data" and option.name is not None and os.sep in option.name:
        raise UserError(f"--data: there is no folder '{option.name}'")
    key, named, cls = option.key, option.name, option.cls()
    for flag in flags:
        if flag.option in (f"--{key}", f"--{key}+"):
            named, cls = flag.value, find_class(key, flag.value)
        elif name := _argument_of(key, flag):
            require_free(f"{key}.{name}")
            if cls is not None and name not in accepted(cls):
                raise UserError(no_such_option(key, cls, name))
            if named is None:
                order = "; an argument of a callback comes after its name" if key == _CALLBACKS.key else ""
                raise UserError(no_class(key, name) + order)


def _argument_of(key: str, flag: Argument) -> str | None:
    """What a flag gives to the class of an option, as ``lr`` in ``--model.optimizer.init_args.lr``."""
    if not flag.option.startswith(f"--{key}."):
        return None
    first, *rest = flag.option.removeprefix(f"--{key}.").split(".")
    name = rest[0] if first == "init_args" and rest else first
    return None if name in ("dict_kwargs", "help") else name.removesuffix("+")


def _short(argument: Argument) -> Argument:
    """``--model.init_args.arch`` as ``--model.arch``."""
    return argument._replace(option=re.sub(r"\.init_args(?=\.)", "", argument.option))


def _dump(values: dict[str, Any]) -> str:
    # quoted and tagged, so that no text is read as a number; a path that long is none
    return yaml.safe_dump(values, default_style='"', default_flow_style=True, width=10**9, allow_unicode=True).strip()
