"""What a sweep tries: the YAML file that names options of ``project.fit`` and their values."""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from project.engine.cli.config_file import Config, read_config
from project.engine.errors import UserError

_RANGE = {"low", "high", "log"}
_KEYS = {*_RANGE, "choices"}
_OF_SWEEP = ("--name", "--trainer.default_root_dir")


@dataclass(frozen=True)
class Space:
    """What every trial has, and what differs between trials.

    Attributes:
        command: Options of ``project.fit`` that every trial has.
        options: By the option's name without ``--``, what it may be.
    """

    command: list[str]
    options: dict[str, BaseDistribution]

    def arguments(self, values: dict[str, Any]) -> list[str]:
        """The command line of ``project.fit`` for one value of each option."""
        return [*self.command, *(f"--{name}={spelt(value)}" for name, value in values.items())]

    def sample(self) -> list[str]:
        """A command line to check the file with: the least or the first value of each option."""
        return self.arguments({name: _first(values) for name, values in self.options.items()})

    def identity(self) -> dict[str, Any]:
        """What makes two spaces the same, as JSON has it."""
        options = {name: distribution_to_json(values) for name, values in self.options.items()}
        return {"command": self.command, "options": options}


def read_space(path: str) -> Space:
    """Reads a sweep's file.

    Args:
        path: A YAML file with ``command``, a text, and ``options``, each a range or choices.

    Raises:
        UserError: The file cannot be read, or says something else; the text names the line.
    """
    config = read_config(path)
    if unknown := [key for key in config.values if key not in ("command", "options")]:
        raise UserError(f"{config.place(unknown[0])}: '{unknown[0]}' is neither 'command' nor 'options'")
    options = config.values.get("options")
    if not isinstance(options, dict) or not options:
        raise UserError(f"{config.place('options')}: 'options' must name options of project.fit and their values")
    space = Space(_command(config), dict(_options(config, options, ())))
    if taken := [name for name in space.options if f"--{name}" in _OF_SWEEP]:
        raise UserError(f"{config.place('options')}: the sweep itself chooses --{taken[0]} of each trial; see --folder")
    for flag in space.command:
        if flag.startswith("--") and flag.partition("=")[0].removeprefix("--") in space.options:
            raise UserError(f"{config.place('command')}: {flag} is among the options to search, too")
    return space


def _command(config: Config) -> list[str]:
    place, text = config.place("command"), config.values.get("command") or ""
    try:
        command = shlex.split(text) if isinstance(text, str) else None
    except ValueError as error:
        raise UserError(f"{place}: 'command' has an open quotation mark") from error
    if command is None or (command and not command[0].startswith("-")):
        raise UserError(f"{place}: 'command' must be options of project.fit, as --trainer.max_epochs 3, got {text}")
    if taken := [flag for flag in command if flag.partition("=")[0] in _OF_SWEEP]:
        raise UserError(f"{place}: the sweep itself chooses {taken[0]} of each trial; see --folder")
    return command


def _options(config: Config, found: dict[str, Any], parents: tuple[str, ...]) -> Iterator[tuple[str, BaseDistribution]]:
    """Finds the options in what dots and indents have nested."""
    for key, inner in found.items():
        path = (*parents, key)
        if isinstance(inner, dict) and inner and not (_KEYS & inner.keys()):
            yield from _options(config, inner, path)
        else:
            try:
                yield ".".join(path), _distribution(inner)
            except ValueError as error:
                raise UserError(f"{config.place('options', *path)}: {'.'.join(path)} {error}") from error


def _distribution(values: Any) -> BaseDistribution:
    """What an option may be.

    Raises:
        ValueError: It is described wrongly; the text continues a sentence that begins with the option's name.
    """
    if not isinstance(values, dict) or not (values.keys() == {"choices"} or {"low", "high"} <= values.keys() <= _RANGE):
        raise ValueError("needs {low: 0.01, high: 1.0}, with log: true if wanted, or {choices: [a, b]}")
    if "choices" in values:
        choices = values["choices"]
        if not isinstance(choices, list) or not choices or not all(map(_is_plain, choices)):
            raise ValueError("has choices that are no list of numbers, texts, true, false and null")
        return CategoricalDistribution(choices)
    low, high, log = values["low"], values["high"], values.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"has log: {log}, which must be true or false")
    if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in (low, high)):
        raise ValueError(f"ranges from {low} to {high}, which must be numbers")
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
        raise ValueError(f"ranges from {low} to {high}: low must be below high{', and above 0 with log' * log}")
    kind = IntDistribution if isinstance(low, int) and isinstance(high, int) else FloatDistribution
    return kind(low, high, log=log)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _first(values: BaseDistribution) -> Any:
    return values.choices[0] if isinstance(values, CategoricalDistribution) else getattr(values, "low")  # noqa: B009


def spelt(value: Any) -> str:
    """A value as the command line has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
