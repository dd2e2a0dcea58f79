"""Parser of a command: readable help, and errors of one line that suggest the closest option.

It imports neither torch nor Lightning, so that ``--help`` is quick.
"""

import json
import re
import shutil
import textwrap
from argparse import SUPPRESS, Action, ArgumentError, HelpFormatter
from collections.abc import Collection, Iterable, Mapping
from difflib import SequenceMatcher
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

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
        """Adds ``--import``, whose modules are imported as it is parsed."""
        text = "Module of your own that defines the checkpoint's model, network or data module"
        self.add_argument("--import", type=import_modules, help=f"{text}; or several: a,b.")

    def known(self) -> set[str]:
        """Returns the names of all options, without dashes."""
        return {name_of(option).lstrip("-") for option in options_of(self)}

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        return self.format_sections({"options": option_lines(options_of(self)).values()})

    def format_sections(self, sections: Mapping[str, Iterable[str]]) -> str:
        """Returns the text of ``--help``, with lines of options by their heading."""
        names = [name_of(option) for option in options_of(self)]
        positionals = [name for name in names if not name.startswith("-")]
        usage = " ".join(["usage:", str(self.prog), *positionals, "[--OPTION VALUE ...]"])
        lines = [usage, "", *textwrap.wrap(self.description or "", help_width())]
        for title, section in sections.items():
            if section:
                lines += ["", *textwrap.wrap(f"{title}:", help_width()), *section]
        return "\n".join([*lines, "", self.epilog or "", ""])

    def error(self, message: str, ex: BaseException | None = None) -> NoReturn:
        """Prints jsonargparse's innermost error in one line, and exits with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        messages = [message]
        while ex is not None:
            if isinstance(ex, ArgumentError):  # about the arguments of a class
                messages.append(str(ex))
            ex = ex.__cause__
        keys = [re.findall(r'^Parser key "(.+?)"', text) for text in messages]
        option = ".".join(key[0] for key in keys if key)
        line = " ".join(re.sub(r'^Parser key ".+?":', "", messages[-1]).split())
        unknown = re.search(r"^unrecognized arguments: --([^\s=]+)", message)
        advice = suggestion(unknown[1], self.known()) if unknown else ""
        end_with_error(f"--{option}: {line}" if option else line + advice)


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


def option_lines(options: Iterable[Action]) -> dict[str, str]:
    """Returns the line of each option, by its name."""
    lines = {}
    for option in options:
        name = name_of(option)
        if option.help == SUPPRESS or name.endswith(".help"):
            continue
        default = json.dumps(option.default, default=str).strip('"')
        is_shown = len(default) <= 12 and default not in ("null", "false", "[]", SUPPRESS)
        lines[name] = option_line(f"{name} {default}" if is_shown else name, option.help or "")
    return lines


def name_of(option: Action) -> str:
    """Returns an option's long name, or a positional argument's name in capitals."""
    *_, name = (option.dest.upper(), *option.option_strings)
    return name.removesuffix("+")


def option_line(label: str, text: str) -> str:
    """Formats an option with the first sentence of its description, without markup, wrapped."""
    text = " ".join(text.replace("Advanced: ", "").replace("``", "").split())
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text)
    sentence = re.split(r"(?<=[\w)])[.;](?:\s|$)|:$", text, maxsplit=1)[0]
    start = f"  {label:<{_LABEL}} "
    indent = " " * (_LABEL + 3)
    return textwrap.fill(sentence, help_width(), initial_indent=start, subsequent_indent=indent)


def import_modules(names: str) -> str:
    """Imports modules, whose classes checkpoints may name from then on."""
    from ..run.settings import allow_module  # here, as it imports torch

    for name in names.split(","):
        import_module(name)
        allow_module(name)
    return names
