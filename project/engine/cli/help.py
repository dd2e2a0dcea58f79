"""The text of ``--help``, which fits a screen or two, and of ``--help-all``; both come from signatures and docstrings.

An option whose description begins with ``Advanced:`` is shown by ``--help-all`` alone.
"""

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lightning.pytorch.cli import LightningArgumentParser

from ..upstream import options_of
from .classes import CLASS_OPTIONS, candidates, class_parser
from .command_line import FOLLOWS

_GROUPS = {"help", "data", "model", "trainer", "callbacks"}


class Option(NamedTuple):
    """An option as it is typed, its default, and its description."""

    name: str
    default: object
    text: str


class Screen(NamedTuple):
    """The contents of ``--help``.

    Attributes:
        trainer: Options of the Trainer, without ``--trainer.``.
        data: The data module whose options are shown.
        model: The model whose options are shown, if any.
        examples: Command lines.
        hidden: Options that the command has no use for.
    """

    trainer: Sequence[str]
    data: type
    model: type | None
    examples: Sequence[str]
    hidden: Sequence[str] = ()


def short_help(parser: LightningArgumentParser, screen: Screen) -> str:
    """Returns the options that most people need."""
    own = {option.name: option for option in _options(parser)}
    switches = [name.removeprefix("--callbacks.") for name in own if name.startswith("--callbacks.")]
    trainer = [own[f"--trainer.{name}"] for name in screen.trainer]
    if switches:
        trainer.append(Option("--callbacks.NAME false", None, f"Switches a callback off: {', '.join(switches)}"))
    modules = ", ".join(cls.__name__ for cls in candidates("data") if cls is not screen.data)
    sections = {
        "command": [own[name] for name in own if "." not in name and name[2:] not in _GROUPS],
        f"data; --data takes a folder, or {modules}": _usual(screen.data, "data", screen.hidden),
        "model; --model takes a class of your own": _usual(screen.model, "model") if screen.model else [],
        "trainer, the options used most": trainer,
    }
    usage = " ".join([parser.prog, *(name for name in own if name.isupper()), "[--OPTION VALUE ...]"])
    lines = [f"usage: {usage}", "", *textwrap.wrap(parser.description or "", _width())]
    for title, options in sections.items():
        if options:
            lines += ["", *textwrap.wrap(f"{title}:", _width()), *map(_line, options)]
    lines += ["", "examples:", *(f"  {example}" for example in screen.examples), ""]
    return "\n".join([*lines, f"All options: {parser.prog} --help-all", ""])


def class_help(cls: type, key: str) -> str:
    """Returns all options of a class, in full."""
    lines = [f"--{key} {cls.__name__}: {_first_sentence(inspect.getdoc(cls) or '')}"]
    for option in _options(class_parser(cls), f"--{key}."):
        text = option.text.removeprefix("Advanced: ")
        lines += [f"  {option.name}{_default(option)}"]
        lines += textwrap.wrap(text, _width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"


def _usual(cls: type, key: str, hidden: Sequence[str] = ()) -> list[Option]:
    options = _options(class_parser(cls), f"--{key}.")
    skipped = {*(f"--{name}" for name in FOLLOWS), *hidden}
    return [one for one in options if one.name not in skipped and not one.text.startswith("Advanced:")]


def _options(parser: LightningArgumentParser, prefix: str = "--") -> Iterable[Option]:
    for action in options_of(parser):
        name = f"{prefix}{action.dest}" if action.option_strings else action.dest.upper()
        if action.help != argparse.SUPPRESS and not name.endswith(".help"):
            yield Option(name, action.default, _plain(action.help or ""))


def _line(option: Option) -> str:
    head = f"  {option.name}{_default(option)}"
    return f"{head:<38} {textwrap.shorten(_first_sentence(option.text), _width() - 39, placeholder=' …')}"


def _default(option: Option) -> str:
    if option.default in (None, argparse.SUPPRESS) or option.name.removeprefix("--") in CLASS_OPTIONS:
        return ""
    value = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    return f" {value}" if len(value) <= 12 else ""


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[\w`)])[.;](?:\s|$)|:$", _plain(text), maxsplit=1)[0]


def _plain(text: str) -> str:
    text = re.sub(r":\w+:`~?([^`]*)`", lambda found: found[1].rsplit(".")[-1], " ".join(text.split()))
    return re.sub(r"\s*\((?:type|required|default)[^()]*(?:\([^()]*\))?[^()]*\)$", "", text.replace("``", ""))


def _width() -> int:
    return min(max(shutil.get_terminal_size((110, 24)).columns, 80), 110)
