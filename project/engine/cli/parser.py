"""Parser of a command: readable help, and errors of one line that suggest the closest option.

It imports neither torch nor Lightning, so that ``--help`` is quick.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from typing import Any, NoReturn, cast

from jsonargparse import ArgumentParser, Namespace

from ..errors import UserError, printable
from .entry import end_with_error

_LABEL = 36  # columns of an option's name
_USUAL = ("data.", "model.optimizer.", "trainer.max_", "seed")
"""Preferred if several options are as close."""


class CommandParser(ArgumentParser):
    """A parser of options whose ``--help`` fits the terminal, and whose errors are one line.

    Options come from ``add_argument``, with types as in annotations. Unknown options are errors, and so are
    abbreviated ones.

    Example:
        >>> parser = CommandParser(description="Labels images.")
        >>> _ = parser.add_argument("--top_k", type=int, default=1, help="Classes to name.")
        >>> parser.parse_args(["--top_k", "3"]).top_k
        3
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False} | kwargs)

    def add_import(self) -> None:
        """Adds ``--import``, whose modules are imported once the options are parsed."""
        text = "Module of your own that defines the checkpoint's model, network or data module."
        self.add_argument("--import", action="append", default=[], help=f"{text[:-1]}; repeatable.")

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parses the options, and imports the modules that ``--import`` names."""
        options: Namespace = super().parse_args(*args, **kwargs)
        import_modules(options.get("import", []))
        return options

    def options(self) -> Sequence[argparse.Action]:
        """Returns all options; argparse has no public list of them but gives them to a formatter."""
        collector = _Collector(self.prog)
        formatter_class, make = self.formatter_class, lambda **_: collector
        self.formatter_class = cast("type[argparse.HelpFormatter]", make)
        super().format_help()
        self.formatter_class = formatter_class
        return collector.actions

    def known(self) -> list[str]:
        """Returns the names of all options, without dashes."""
        names = [name for action in self.options() for name in action.option_strings]
        return [name.lstrip("-") for name in names]

    def sections(self, width: int) -> dict[str, list[str]]:
        """Returns the lines of options for ``--help``, by their heading."""
        return {"options": [*option_lines(self.options(), width).values()]}

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        width = min(max(shutil.get_terminal_size((110, 24)).columns, 80), 160)
        positionals = [
            action.dest.upper() for action in self.options() if not action.option_strings
        ]
        usage = " ".join(["usage:", str(self.prog), *positionals, "[--OPTION VALUE ...]"])
        lines = [usage, "", *textwrap.wrap(self.description or "", width)]
        for title, section in self.sections(width).items():
            if section:
                lines += ["", *textwrap.wrap(f"{title}:", width), *section]
        return "\n".join([*lines, "", self.epilog or "", ""])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints jsonargparse's message in one line, with the closest option, and exits with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        known = self.known()
        words = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
        unknown = next((word[2:] for word in words if word[2:] not in known), None)
        end_with_error(one_line(message) + (suggestion(unknown, known) if unknown else ""))


class _Collector(argparse.HelpFormatter):
    """Collects the options that it is to format."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self.actions: list[argparse.Action] = []

    def add_argument(self, action: argparse.Action) -> None:
        """Collects an option."""
        self.actions.append(action)


def one_line(message: str, group: str = "") -> str:
    """Shortens jsonargparse's message, often a tree of types, to its leaves and the value.

    ``group`` is the option that takes the class whose arguments the message is about.
    """
    message = message.replace("<class '", "").replace("'>", "")
    first, *rest = filter(None, (line.strip() for line in message.splitlines()))
    _, is_value, option = first.partition('Parser key "')
    if is_value:
        first = f"--{group}.{option}" if group else f"--{option}"
        first = first.replace('":', ":").replace(".init_args", "")
    elif group:
        first = f"--{group}: {first}"
    leaves = [line[2:] for line in rest if line.startswith("- ")]
    if leaves:
        rest = [*dict.fromkeys(leaves), rest[-1]]
    return " ".join([first, "; ".join(rest)]).strip()


def suggestion(option: str, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown option: the closest name, if any."""
    word = option.rpartition(".")[2].replace("-", "_")

    def similarity(name: str) -> tuple[float, bool]:
        return SequenceMatcher(None, word, name.rpartition(".")[2]).ratio(), name.startswith(_USUAL)

    closest = max(known, key=similarity)
    return f"; did you mean --{closest}?" if similarity(closest)[0] > 0.6 else "; see --help"


def option_lines(options: Iterable[argparse.Action], width: int) -> dict[str, str]:
    """Returns the lines of each option, by its name, with its default and the first sentence of its help."""
    lines = {}
    for action in options:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        name = flags[0] if flags else action.dest.upper()
        text = action.help or ""
        default = str(action.default)
        if isinstance(action.default, bool):
            default = default.lower()
        is_shown = len(default) <= 12 and default not in ("None", "false", "[]", argparse.SUPPRESS)
        if text != argparse.SUPPRESS and not name.endswith(".help"):
            lines[name] = option_line(f"{name} {default}" if is_shown else name, text, width)
    return lines


def option_line(label: str, text: str, width: int) -> str:
    """Formats an option with the first sentence of its description, without markup, wrapped."""
    text = " ".join(text.replace("Advanced: ", "").replace("``", "").split())
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text)
    sentence = re.split(r"(?<=[\w)])[.;](?:\s|$)|:$", text, maxsplit=1)[0]
    indent = " " * (_LABEL + 3)
    return textwrap.fill(
        sentence, width, initial_indent=f"  {label:<{_LABEL}} ", subsequent_indent=indent
    )


def import_modules(modules: Sequence[str]) -> None:
    """Imports what ``--import`` names, so that a checkpoint's classes are found by their names."""
    if not modules:
        return
    from ..run.settings import allow_module  # here, as it imports torch

    for module in (name.strip() for names in modules for name in names.split(",")):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            text = f"'{printable(module)}' cannot be imported from this folder: {error}"
            raise UserError(f"--import: {text}") from error
        allow_module(module)
