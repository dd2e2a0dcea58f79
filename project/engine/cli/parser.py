"""Parser of a command: readable help, and errors of one line that suggest the closest option.

It imports neither torch nor Lightning, so that ``--help`` is quick.
"""

import json
import re
from argparse import SUPPRESS, Action, ArgumentError, HelpFormatter
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from difflib import SequenceMatcher
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from ..upstream import options_of
from .entry import end_with_error

_LABEL = 40  # columns of an option's name
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
        text = "Your module of the checkpoint's model, network or data"
        self.add_argument("--import", type=import_modules, help=f"{text}; or several: a,b.")

    def known(self) -> set[str]:
        """Returns the names of all options, without dashes."""
        return {name_of(option).lstrip("-") for option in options_of(self)}

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        return self.format_sections({"options": options_of(self)})

    def format_sections(self, sections: Mapping[str, Iterable[Action]]) -> str:
        """Returns the text of ``--help``, with options by their heading."""
        formatter = HelpFormatter(str(self.prog), max_help_position=_LABEL)
        options = options_of(self)
        positionals = [name_of(option) for option in options if not option.option_strings]
        usage = " ".join([str(self.prog), *positionals, "[--OPTION VALUE ...]"])
        formatter.add_usage(usage, (), ())
        formatter.add_text(self.description)
        for title, section in sections.items():
            formatter.start_section(title)
            formatter.add_arguments([in_short(option) for option in section])
            formatter.end_section()
        return f"{formatter.format_help()}\n{self.epilog or ''}\n"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints jsonargparse's innermost error in one line, and exits with code 2."""
        if not self.exit_on_error:
            super().error(message, ex)
        messages = [message]
        cause: BaseException | None = ex
        while cause is not None:
            if isinstance(cause, ArgumentError):  # about the arguments of a class
                messages.append(str(cause))
            cause = cause.__cause__
        keys = [re.findall(r'^Parser key "(.+?)"', text) for text in messages]
        option = ".".join(key[0] for key in keys if key)
        line = " ".join(re.sub(r'^Parser key ".+?":', "", messages[-1]).split())
        unknown = re.search(r"^unrecognized arguments: --([^\s=]+)", message)
        advice = suggestion(unknown[1], self.known()) if unknown else ""
        end_with_error(f"--{option}: {line}" if option else line + advice)


def suggestion(option: str, known: Collection[str]) -> str:
    """Returns the end of a message about an unknown option: the closest name, if any."""
    owner, _, word = option.replace("-", "_").rpartition(".")

    def similarity(name: str) -> tuple[float, bool]:
        likeness = SequenceMatcher(None, word, name.rpartition(".")[2]).ratio()
        return max(name == f"{owner}_args", likeness), name.startswith(_USUAL)

    closest = max(sorted(known), key=similarity)
    return f"; did you mean --{closest}?" if similarity(closest)[0] > 0.6 else "; see --help"


def name_of(option: Action) -> str:
    """Returns an option's long name, or a positional argument's name in capitals."""
    *_, name = (option.dest.upper(), *option.option_strings)
    return name.removesuffix("+")


def in_short(option: Action) -> Action:
    """Returns an option with its default, and the first sentence of its help, without markup."""
    short = copy(option)
    text = " ".join(str(option.help).replace("Advanced: ", "").replace("``", "").split())
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text)
    sentence = re.split(r"(?<=[\w)])[.;](?:\s|$)|:$", text, maxsplit=1)[0]
    short.help = sentence.replace("%", "%%")
    default = json.dumps(option.default, default=str).strip('"')
    is_shown = len(default) <= 12 and default not in ("null", "false", "[]", SUPPRESS)
    short.metavar = default if is_shown else ""
    short.nargs = None
    if option.option_strings:
        short.option_strings = [name_of(option)]
    else:
        short.metavar = name_of(option)
    return short


def import_modules(names: str) -> str:
    """Imports modules, whose classes checkpoints may name from then on."""
    from ..run.settings import allow_module  # here, as it imports torch

    for name in names.split(","):
        import_module(name)
        allow_module(name)
    return names
