"""Puts a command line in order: configs first, then classes with what configs give to them, then flags.

jsonargparse reads from left to right. Where a class is named after its arguments, it silently drops what the class
before did not accept, and keeps what that class had by default. It never meets such a change here.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import ArgumentParser

from project.data import FolderDataModule
from project.errors import UserError
from project.options.arguments import WITHOUT_VALUE, Argument, split_arguments
from project.options.classes import CLASS_OPTIONS, accepted, find_class, no_class, no_such_option
from project.options.config_file import Config, parse_config, read_config

_SPEC = {"class_path", "init_args", "dict_kwargs"}


class Given(NamedTuple):
    """A value for an argument of a class.

    Attributes:
        value: The value.
        place: The file and line that it is from.
        cls: The class that was named by then.
    """

    value: Any
    place: str
    cls: type | None


@dataclass
class ClassOption:
    """What was given to one option that takes a class.

    Attributes:
        key: The option, without dashes.
        name: The class, as it was named, or the default.
        arguments: What configs give to it.
        is_given: Whether there is anything but the default.
        other: What was given in place of a class, as in ``--trainer.logger false``.
    """

    key: str
    name: str | None = None
    arguments: dict[str, Given] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    is_given: bool = False
    other: Any = None

    def take(self, value: Any, config: Config, *path: str) -> None:
        """Adds what a config says.

        Args:
            value: A class's name, its specification, arguments of it, or something else that the option takes.
            config: The config.
            path: Where in it.
        """
        self.is_given = True
        if isinstance(value, dict):
            spec: dict[str, Any] = value if _SPEC.issuperset(value) else {"init_args": value}
            self.name = spec.get("class_path", self.name)
            self.other = None
            cls = find_class(self.key, self.name)
            inner = [*path, "init_args"] if spec is value else [*path]
            for name, argument in (spec.get("init_args") or {}).items():
                self.arguments[name] = Given(argument, config.place(*inner, name), cls)
            self.extra |= spec.get("dict_kwargs") or {}
        elif isinstance(value, str):
            self.name, self.other = value, None
            if self.key == "data" and is_folder(value):
                self.name = "project.data.FolderDataModule"
                self.arguments["root"] = Given(value, config.place(*path), FolderDataModule)
        else:
            self.name, self.other = None, value
            self.arguments.clear()
            self.extra.clear()

    def settle(self) -> Any:
        """What the option is, all configs taken together.

        Raises:
            UserError: A config gives an argument that the class does not accept.
        """
        if self.name is None:
            return {"init_args": self._values()} if self.arguments else self.other
        cls = find_class(self.key, self.name)
        if cls is not None:
            for name, given in list(self.arguments.items()):
                if name not in accepted(cls):
                    self._drop_default(cls, name, given)
        elif not (self.arguments or self.extra):
            return self.name  # which the parser refuses, or knows as something else
        path = f"{cls.__module__}.{cls.__qualname__}" if cls is not None else self.name
        path = self.name if "<locals>" in path else path
        spec = {"class_path": path, "init_args": self._values(), "dict_kwargs": self.extra}
        return {name: value for name, value in spec.items() if value}

    def _values(self) -> dict[str, Any]:
        return {name: given.value for name, given in self.arguments.items()}

    def _drop_default(self, cls: type, name: str, given: Given) -> None:
        """Drops what a saved config holds of the old class's defaults; anything else was meant."""
        before = accepted(given.cls) if given.cls is not None and given.cls is not cls else {}
        if name not in before or before[name] != given.value:
            raise UserError(f"{given.place}: {no_such_option(self.key, cls, name)}")
        del self.arguments[name]


def arrange(args: list[str], parser: ArgumentParser) -> tuple[list[str], list[Config]]:
    """Puts a command line in an order in which nothing that was given is dropped.

    Args:
        args: The command line.
        parser: Its parser; what an unnamed class has by default leaves the parser's defaults where another is named.

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
    flags = [argument for argument in arguments if argument.option not in ("-c", "--config")]
    options = [_class_option(key, parser) for key in CLASS_OPTIONS if key != "trainer.callbacks"]
    for config in configs:
        _require_groups(config)
        for option in options:
            _take_config(option, config)
    for option in options:
        flags = _take_flags(option, flags)
        _require_accepted(option, flags)
    _require_accepted_by_callbacks(flags)
    classes: dict[str, Any] = {}
    for option in options:
        if option.is_given:
            _forget_default(option, parser)
            *outer, last = option.key.split(".")
            inner = classes.setdefault(outer[0], {}) if outer else classes
            inner[last] = option.settle()
    texts = [config.values for config in configs if config.values] + ([classes] if classes else [])
    return [f"--config={_dump(values)}" for values in texts] + [str(flag) for flag in flags], configs


def is_folder(data: str | None) -> bool:
    """Whether ``--data`` names a folder rather than a class."""
    return data is not None and os.path.isdir(os.path.expanduser(data)) and find_class("data", data) is None


def _config(argument: Argument) -> Config:
    text = argument.value or ""
    return parse_config(text, "--config") if text.lstrip().startswith("{") else read_config(text)


def _require_groups(config: Config) -> None:
    """Refuses a value in place of a group's options, which the parser would pass over; an empty group says nothing."""
    for group in ("model", "trainer", "last_checkpoint"):
        value = config.values.get(group, {})
        if value is None:
            del config.values[group]
        elif not isinstance(value, dict):
            raise UserError(f"{config.place(group)}: {group} is a group of options, got '{value}'")


def _class_option(key: str, parser: ArgumentParser) -> ClassOption:
    try:
        default = parser.get_default(key)
    except KeyError:  # an option that this command does not have
        default = None
    name = default if isinstance(default, str) else default.get("class_path") if default else None
    return ClassOption(key, name)


def _take_config(option: ClassOption, config: Config) -> None:
    *outer, last = option.key.split(".")
    values: Any = config.values
    for name in outer:
        values = values.get(name) if isinstance(values, dict) else None
    if isinstance(values, dict) and last in values:
        value = values.pop(last)
        if isinstance(value, str) and value.endswith((".yaml", ".yml")):
            included = read_config(str(Path(config.name).parent / value))
            option.take(included.values, included)
        else:
            option.take(value, config, *option.key.split("."))


def _take_flags(option: ClassOption, flags: list[Argument]) -> list[Argument]:
    """Takes the flags that name a class; what else is given to it stays, and comes after the class then."""
    left = []
    for flag in flags:
        if flag.option not in (f"--{option.key}", f"--{option.key}.class_path") or flag.value is None:
            left.append(flag)
            continue
        value = flag.value
        if value.lstrip().startswith("{"):
            config = parse_config(value, f"--{option.key}")
            option.take(config.values, config)
        elif value.endswith((".yaml", ".yml")):
            config = read_config(value)
            option.take(config.values, config)
        else:
            parsed = yaml.safe_load(value) if value in ("null", "true", "false") or value.startswith("[") else value
            option.take(parsed, Config(f"--{option.key}", {}))
    return left


def _require_accepted(option: ClassOption, flags: list[Argument]) -> None:
    """Refuses flags that the class does not accept, all in one place, whatever their order."""
    if option.key == "data" and option.name is not None and os.sep in option.name:
        raise UserError(f"--data: there is no folder '{option.name}'")
    cls = find_class(option.key, option.name)
    for flag in flags:
        if name := _argument_of(option.key, flag):
            if cls is not None and name not in accepted(cls):
                raise UserError(no_such_option(option.key, cls, name))
            if option.name is None:
                raise UserError(no_class(option.key, name))


def _require_accepted_by_callbacks(flags: list[Argument]) -> None:
    """Refuses arguments that the callback named last before them does not accept."""
    key, named, cls = "trainer.callbacks", False, None
    for flag in flags:
        if flag.option in (f"--{key}", f"--{key}+"):
            named, cls = True, find_class(key, flag.value)
        elif name := _argument_of(key, flag):
            if not named:
                raise UserError(f"{no_class(key, name)}; an argument of a callback comes after its name")
            if cls is not None and name not in accepted(cls):
                raise UserError(no_such_option(key, cls, name))


def _argument_of(key: str, flag: Argument) -> str | None:
    """What a flag gives to the class of an option, as ``lr`` in ``--model.optimizer.init_args.lr``."""
    if not flag.option.startswith(f"--{key}."):
        return None
    first, *rest = flag.option.removeprefix(f"--{key}.").split(".")
    name = rest[0] if first == "init_args" and rest else first
    return None if name in ("dict_kwargs", "help") else name.removesuffix("+")


def _forget_default(option: ClassOption, parser: ArgumentParser) -> None:
    """Takes the default's arguments out of the parser, where another class is named."""
    default = parser.get_default(option.key)
    if default is None or option.name is None:
        return
    name = default if isinstance(default, str) else default.get("class_path")
    if find_class(option.key, name) is not find_class(option.key, option.name):
        parser.set_defaults({option.key: None})


def _dump(values: dict[str, Any]) -> str:
    # quoted and tagged, so that no text is read as a number; a path that long is none
    return yaml.safe_dump(values, default_style='"', default_flow_style=True, width=10**9, allow_unicode=True).strip()
