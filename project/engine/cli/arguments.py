"""A command line, taken apart into options and values."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import UserError, first_sentence, printable
from ..run.file_network import allow_module
from .config_file import local_path

WITHOUT_VALUE = {"-h", "--help", "--help-all", "--print_config"}


class Argument(NamedTuple):
    """One argument of a command line.

    Attributes:
        option: The option, as in ``--model.arch``; empty where a value stands alone.
        value: Its value, if it has one.
    """

    option: str
    value: str | None

    def __str__(self) -> str:
        if not self.option:
            return self.value or ""
        return self.option if self.value is None else f"{self.option}={self.value}"


def split_arguments(args: list[str]) -> Iterator[Argument]:
    """Takes a command line apart as argparse does where no option takes more than one value."""
    words = iter(args)
    waiting: str | None = None  # an option that may still get a value
    for word in words:
        if waiting is not None:
            ends = word.startswith("-") and not _is_number(word)
            yield Argument(waiting, None if ends else local_path(word))
            waiting = None
            if not ends:
                continue
        option, equals, value = word.partition("=")
        if not word.startswith("-") or _is_number(word):
            yield Argument("", local_path(word))
        elif equals or option in WITHOUT_VALUE:
            yield Argument(option, local_path(value) if equals else None)
        elif word.startswith("-c") and not word.startswith("--") and len(word) > 2:
            yield Argument("-c", word[2:])
        else:
            waiting = option
    if waiting is not None:
        yield Argument(waiting, None)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


IMPORT: dict[str, Any] = {
    "type": str | None,
    "default": None,
    "help": "Modules of your own, separated by commas, that define the checkpoint's model, network or data module.",
}
"""The option ``--import`` of every command that opens a checkpoint."""


def import_named(modules: str | None) -> None:
    """Imports what ``--import`` names, if anything, so that classes in it are found by their names.

    Args:
        modules: The modules, separated by commas.

    Raises:
        UserError: There is no such module, or it fails.
    """
    for module in modules.split(",") if modules is not None else ():
        try:
            import_module(module.strip())
            allow_module(module.strip())
        except Exception as error:  # importing runs the user's code
            reason = f"{type(error).__name__}: {first_sentence(error)}"
            raise UserError(
                f"--import: '{printable(module)}' cannot be imported from this folder ({reason})"
            ) from error


def option_for_lone_value(option: str, args: list[str]) -> list[str]:
    """Puts an option before a value that stands alone, as in ``project.evaluate best.ckpt``."""
    arguments = list(split_arguments(args))
    lone = next((argument for argument in arguments if not argument.option), None)
    named = any(argument.option == option for argument in arguments)
    return [f"{option}={argument}" if argument is lone and not named else str(argument) for argument in arguments]


def last_value(option: str, args: list[str]) -> str | None:
    """The value that a command line gives to an option, the last where there are several."""
    return next((found.value for found in reversed([*split_arguments(args)]) if found.option == option), None)
