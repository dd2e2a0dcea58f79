"""The text of ``--help``, which fits a screen or two; it comes from signatures and docstrings.

An option whose description begins with ``Advanced:`` is shown by ``--help-all`` alone.
"""

import re
import shutil
import textwrap
from argparse import SUPPRESS
from collections.abc import Sequence
from typing import NamedTuple

from lightning.pytorch.cli import LightningArgumentParser

from ..upstream import options_of
from .classes import CLASS_OPTIONS, candidates, class_parser
from .command_line import FOLLOWS

_GROUPS = {"--help", "--data", "--model", "--trainer", "--callbacks"}


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
    width = min(max(shutil.get_terminal_size((110, 24)).columns, 80), 110)
    own, skipped = _lines(parser, width), {*(f"--{name}" for name in FOLLOWS), *screen.hidden}
    usual = {
        key: [
            line for name, line in _lines(class_parser(cls, key), width).items() if name not in {f"--{key}", *skipped}
        ]
        for key, cls in (("data", screen.data), ("model", screen.model))
        if cls
    }
    switches = ", ".join(name.removeprefix("--callbacks.") for name in own if name.startswith("--callbacks."))
    switch = _line("--callbacks.NAME false", f"Switches a callback off: {switches}", width)
    modules = ", ".join(cls.__name__ for cls in candidates("data") if cls is not screen.data)
    sections = {
        "command": [line for name, line in own.items() if "." not in name and name not in _GROUPS],
        f"data; --data takes a folder, or {modules}": usual["data"],
        "model; --model takes a class of your own": usual.get("model", []),
        "trainer, the options used most": [own[f"--trainer.{name}"] for name in screen.trainer]
        + [switch] * bool(switches),
    }
    usage = " ".join([parser.prog, *(name for name in own if name.isupper()), "[--OPTION VALUE ...]"])
    lines = [f"usage: {usage}", "", *textwrap.wrap(parser.description or "", width)]
    for title, options in sections.items():
        if options:
            lines += ["", *textwrap.wrap(f"{title}:", width), *options]
    lines += ["", "examples:", *(f"  {example}" for example in screen.examples), ""]
    return "\n".join([*lines, f"All options: {parser.prog} --help-all", ""])


def _lines(parser: LightningArgumentParser, width: int) -> dict[str, str]:
    """Returns the line of each option by its name; advanced ones have none."""
    lines: dict[str, str] = {}
    for action in options_of(parser):
        name, text = f"--{action.dest}" if action.option_strings else action.dest.upper(), action.help or ""
        if text != SUPPRESS and not text.startswith("Advanced:") and not name.endswith(".help"):
            default = str(action.default).lower() if isinstance(action.default, bool) else str(action.default)
            is_shown = action.default not in (None, SUPPRESS) and len(default) <= 12 and name[2:] not in CLASS_OPTIONS
            lines[name] = _line(f"{name} {default}" if is_shown else name, text, width)
    return lines


def _line(head: str, text: str, width: int) -> str:
    """Formats an option with the first sentence of its description, without markup."""
    text = re.sub(r":\w+:`~?([^`]*)`", lambda found: found[1].rsplit(".")[-1], " ".join(text.split()))
    text = re.split(r"(?<=[\w`)])[.;](?:\s|$)|:$", text.replace("``", ""), maxsplit=1)[0]
    return f"  {head:<36} {textwrap.shorten(text, width - 39, placeholder=' …')}"
