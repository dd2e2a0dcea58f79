"""Parser of a command: readable help, and errors of one line that suggest the closest option.

It imports neither torch nor Lightning, so that ``--help`` is quick.
"""

import re
import shutil
import textwrap
from argparse import SUPPRESS, Action, ArgumentError, HelpFormatter
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from ..errors import UserError, printable
from ..upstream import options_of
from .entry import end_with_error

_LABEL = 36  # columns of an option's name
_USUAL = ("data.", "model.optimizer.", "trainer.max_", "seed")
"""Preferred if several options are as close."""


class CommandParser(ArgumentParser):
    """A parser of options whose ``--help`` fits the terminal, and whose errors are one line.

    Options come from ``add_argument``, with types as in annotations. Unknown options are errors,
    and so are abbreviated ones.

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
        text = "Module of your own that defines the checkpoint's model, network or data module"
        self.add_argument("--import", action="append", default=[], help=f"{text}; repeatable.")

    def parse_args(self, *args: Any, **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parses the options, and imports the modules that ``--import`` names."""
        options: Namespace = super().parse_args(*args, **kwargs)
        import_modules(options.get("import", []))
        return options

    def known(self) -> set[str]:
        """Returns the names of all options, without dashes."""
        names = [name for action in options_of(self) for name in action.option_strings]
        return {name.lstrip("-") for name in names}

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        options = option_lines(options_of(self), help_width())
        return self.format_sections({"options": [*options.values()]})

    def format_sections(self, sections: Mapping[str, Sequence[str]]) -> str:
        """Returns the text of ``--help``, with lines of options by their heading."""
        positionals = [action.dest.upper() for action in options_of(self) if is_positional(action)]
        usage = " ".join(["usage:", str(self.prog), *positionals, "[--OPTION VALUE ...]"])
        lines = [usage, "", *textwrap.wrap(self.description or "", help_width())]
        for title, section in sections.items():
            if section:
                lines += ["", *textwrap.wrap(f"{title}:", help_width()), *section]
        return "\n".join([*lines, "", self.epilog or "", ""])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints jsonargparse's innermost error in one line, and exits with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        line = one_line(message, ex)
        unknown = re.search(r"^unrecognized arguments: --([^\s=]+)", message)
        end_with_error(line + (suggestion(unknown[1], self.known()) if unknown else ""))


def one_line(message: str, error: BaseException | None) -> str:
    """Formats an error about an option, or the innermost one about the arguments of its class."""
    messages = [message]
    while error is not None:
        messages += [str(error)] if isinstance(error, ArgumentError) else []
        error = error.__cause__
    keys = []
    text = message
    for text in messages:
        if match := re.match(r'Parser key "(.+?)":(.*)', text, re.DOTALL):
            keys.append(match[1])
            text = match[2]
    option = f"--{'.'.join(keys)}: " if keys else ""
    return option + " ".join(text.split())


def suggestion(option: str, known: Collection[str]) -> str:
    """Returns the end of a message about an unknown option: the closest name, if any."""
    word = option.rpartition(".")[2].replace("-", "_")

    def similarity(name: str) -> tuple[float, bool]:
        return SequenceMatcher(None, word, name.rpartition(".")[2]).ratio(), name.startswith(_USUAL)

    closest = max(sorted(known), key=similarity)
    return f"; did you mean --{closest}?" if similarity(closest)[0] > 0.6 else "; see --help"


def help_width() -> int:
    """Returns the columns of the terminal, within reason."""
    return min(max(shutil.get_terminal_size((110, 24)).columns, 80), 160)


def is_positional(action: Action) -> bool:
    """Returns True for an argument without a name."""
    return not action.option_strings


def option_lines(options: Iterable[Action], width: int) -> dict[str, str]:
    """Returns the line of each option, by its name."""
    lines = {}
    for action in options:
        names = [name for name in action.option_strings if name.startswith("--")]
        name = names[0] if names else action.dest.upper()
        if action.help == SUPPRESS or name.endswith(".help"):
            continue
        is_bool = isinstance(action.default, bool)
        default = str(action.default).lower() if is_bool else str(action.default)
        is_shown = len(default) <= 12 and default not in ("None", "false", "[]", SUPPRESS)
        label = f"{name} {default}" if is_shown else name
        lines[name] = option_line(label, action.help or "", width)
    return lines


def option_line(label: str, text: str, width: int) -> str:
    """Formats an option with the first sentence of its description, without markup, wrapped."""
    text = " ".join(text.replace("Advanced: ", "").replace("``", "").split())
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text)
    sentence = re.split(r"(?<=[\w)])[.;](?:\s|$)|:$", text, maxsplit=1)[0]
    start = f"  {label:<{_LABEL}} "
    return textwrap.fill(sentence, width, initial_indent=start, subsequent_indent=" " * len(start))


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
