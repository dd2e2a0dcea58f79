"""The command line's parser: LightningCLI's own, with messages of one line, and a help that fits a screen or two.

Both come from signatures and docstrings. An option whose description begins with ``Advanced:`` is shown by ``--help-all``
alone.
"""

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple, NoReturn, get_args, get_type_hints

from jsonargparse import Namespace, set_parsing_settings
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from torch import nn

from ..errors import end_with_error, listed
from ..upstream import options_of
from .classes import CLASS_OPTIONS, accepted, candidates, class_parser, unknown_class
from .command_line import FOLLOWS

_MISSING = r"""the following arguments are required: ([^,]+)|Parser key "([^"]+)":[\s\S]*(?:value: None|not 'NoneType')$"""
_UNKNOWN_CLASS = r"path string: (\S+)|class_path '([^']+)'|not correspond[\s\S]*value: (\S+)\s*$"
_FRAME = ("Does not", "Subtypes", "Errors", "Given", "Expected a")
_USUAL = ("--data.", "--model.optimizer.", "--trainer.max_", "--seed")


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


class OneLineErrorParser(LightningArgumentParser):
    """Says what is wrong in one line, with the nearest valid names, and exits with code 2.

    jsonargparse makes one for each class that an option takes, too. Options are not abbreviated. ``screen`` has the
    contents of ``--help``, by default all options.
    """

    command: ClassVar["OneLineErrorParser | None"] = None
    """The parser of the whole command while it parses, whose options messages about a class's suggest, too."""

    def __init__(self, *args: Any, screen: Screen | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.screen = screen
        self._class: type | None = None
        self.callbacks: dict[type, str] = {}

    def add_class_arguments(
        self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        """Remembers the class for messages, and changes defaults that do not suit a run.

        Loggers write into the run's folder; ``EarlyStopping`` watches ``--monitor``; a loss returns one number an image.
        The callbacks of a dataclass have options of their own, as in ``--callbacks.first_batch.count 8``.
        """
        if nested_key is None:
            self._class = theclass
        elif is_dataclass(theclass):
            fields = [
                (name, cls)
                for name, hint in get_type_hints(theclass).items()
                for cls in get_args(hint)
            ]
            self.callbacks = {
                cls: f"{nested_key}.{name}" for name, cls in fields if issubclass(cls, Callback)
            }
            set_parsing_settings(
                subclasses_disabled=[*self.callbacks]
            )  # their class is not for the user to name
        added: list[str] = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in options_of(self):
            if action.dest == "save_dir" and action.required and issubclass(theclass, Logger):
                action.required, action.default = False, "."
            if action.dest == "monitor" and issubclass(theclass, EarlyStopping):
                action.required = False
            if (
                action.dest == "reduction"
                and action.default == "mean"
                and issubclass(theclass, nn.Module)
            ):
                action.default = "none"
        return added

    def validate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> None:
        """Refuses null where a class has a default and takes no null; jsonargparse takes it for not given."""
        super().validate(namespace, *args, **kwargs)
        for action in options_of(self) if self._class else ():
            if action.default is not None and namespace.get(action.dest, action.default) is None:
                null = Namespace({action.dest: None})  # type: ignore[no-untyped-call]  # of jsonargparse
                super().validate(null, skip_unset=False, skip_required=True)

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        return short_help(self, self.screen) if self.screen else super().format_help(formatter)

    def format_full_help(self) -> str:
        """Returns the text of ``--help-all``: every option of the command, of its data modules and models."""
        keys = {action.dest for action in options_of(self)} & {"data", "model"}
        classes = [(cls, key) for key in sorted(keys) for cls in candidates(key)]
        shown = [
            (f"--{key} {cls.__name__}", class_parser(cls, key))
            for cls, key in [*classes, *self.callbacks.items()]
        ]
        text = "\n".join(f"{title}: {parser.format_help().strip()}\n" for title, parser in shown)
        return f"{super().format_help()}\n{text.replace('Advanced: ', '')}"

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Rewords a message of jsonargparse in one line, unknown, missing or a bad value, and exits."""
        if self._class and not self.command:  # it looks whether another class's default would do
            super().error(message, ex)
        if found := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            text = self._unknown(found[1])
        elif found := re.match(
            r"(?:Group '(\S+)' does not accept option|Option) '([^']+)'", message
        ):
            text = self._unknown(f"--{'.'.join(filter(None, found.groups()))}")
        elif found := re.match(_MISSING, message):
            name, by = found[1] or found[2], f" by {self._class.__name__}" if self._class else ""
            text = f"{self._in_full(name)} is required{by}"
            if name in [action.dest for action in options_of(self) if not action.option_strings]:
                text = f"{name.upper()} is missing, as in: {self.prog} {name.upper()}; see --help"
        elif found := re.match(r'Parser key "([^"]+)"', message):
            text = self._bad_value(self._in_full(found[1]), message)
        else:
            text = " ".join(message.split())
        end_with_error(text)

    def _unknown(self, option: str) -> str:
        name, cls, key = option.removeprefix("--").removesuffix("+"), self._class, self._key
        if cls is None:
            return f"there is no option '{option}'{self.did_you_mean(option)}"
        text = f"{f'--{key}.{name}: ' if key else ''}{cls.__name__} has no option '{name}'"
        if nearest := get_close_matches(name, accepted(cls), n=1, cutoff=0.75):
            return f"{text}; did you mean {f'--{key}.' if key else ''}{nearest[0]}?"
        if (
            having := [one.__name__ for one in candidates(key) if name in accepted(one)]
            if key in CLASS_OPTIONS
            else []
        ):
            return f"{text}; {listed(having[:3])} {'has' if len(having) == 1 else 'have'} it"
        return f"{text}{(self.command or self).did_you_mean(option)}"

    def did_you_mean(self, option: str) -> str:
        """The end of a message about an unknown option: one with that word in its last name, or spelled alike, if any."""
        known = [
            name
            for action in options_of(self)
            for name in action.option_strings
            if name[2:] not in FOLLOWS
        ]
        if self.screen:
            known += [
                f"--{key}.{name}"
                for key in CLASS_OPTIONS
                for cls in candidates(key)
                for name in accepted(cls)
            ]
        wanted, by_last = (
            _last(option).replace("-", "_"),
            {_last(name): name for name in reversed(known)},
        )
        nearest = [name for name in known if wanted in (_last(name), *_last(name).split("_"))]
        nearest = nearest or [by_last[name] for name in get_close_matches(wanted, by_last, n=1)]
        if not nearest:
            return "; --help-all lists what there is"
        return f"; did you mean {min(nearest, key=lambda name: (not name.startswith(_USUAL), _last(name) != wanted))}?"

    def _bad_value(self, option: str, message: str) -> str:
        key = option.removeprefix("--")
        if key in CLASS_OPTIONS and (found := re.search(_UNKNOWN_CLASS, message)):
            return unknown_class(key, next(filter(None, found.groups())))
        given = re.search(r"(?:Given|Got) value: *(.*)|: (\S+) does not conform|: '(.*)'$", message)
        value = next(filter(None, given.groups()), "") if given else ""
        if found := re.search(r"does not conform to restriction (.+)", message):
            return f"{option} must be {found[1].replace('v', '')}, got {value}"
        kinds = map(
            _readable, re.findall(r"(?:Expected an?|Not of type) (.+?)(?:\. Got|:|\n|$)", message)
        )
        wanted = [
            kind for kind in dict.fromkeys(kinds) if kind != "NoneType" and "path" not in kind
        ]
        if wanted and given:
            return f"{option}: expected {' or '.join(wanted)}, not '{value}'"
        lines = [
            line
            for line in re.split(r"[\s-]*\n[\s-]*", message)[1:]
            if line and not line.startswith(_FRAME)
        ]
        return f"{option}: {[*lines, ' '.join(message.split())][0]}"

    @property
    def _key(self) -> str | None:
        """The option that takes this class, without dashes, if there is one."""
        cls = self._class
        options = (
            {key: found for found, key in self.command.callbacks.items()} | CLASS_OPTIONS
            if self.command
            else {}
        )
        return next((key for key, base in options.items() if cls and issubclass(cls, base)), None)

    def _in_full(self, name: str) -> str:
        """Returns the option for an argument of the class."""
        if self._class is None:
            return f"--{name.removeprefix('--').replace('.init_args', '')}"
        return f"--{self._key}.{name}" if self._key else f"{self._class.__name__}'s {name}"


def _last(option: str) -> str:
    return option.rsplit(".", 1)[-1].lstrip("-")


def _readable(kind: str) -> str:
    kind = re.sub(r"<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.+)\]", r"\1\2", kind).replace(
        "'", ""
    )
    return "a list as [A,B]" if kind in ("tuple", "list") else kind


def short_help(parser: LightningArgumentParser, screen: Screen) -> str:
    """Returns the options that most people need."""
    width = min(max(shutil.get_terminal_size((110, 24)).columns, 80), 110)
    own, skipped = _lines(parser, width), {*(f"--{name}" for name in FOLLOWS), *screen.hidden}
    usual = {
        key: [
            line
            for name, line in _lines(class_parser(cls, key), width).items()
            if name not in {f"--{key}", *skipped}
        ]
        for key, cls in (("data", screen.data), ("model", screen.model))
        if cls
    }
    switches = ", ".join(
        name.removeprefix("--callbacks.") for name in own if name.startswith("--callbacks.")
    )
    switch = _line("--callbacks.NAME false", f"Switches a callback off: {switches}", width)
    modules = ", ".join(cls.__name__ for cls in candidates("data") if cls is not screen.data)
    sections = {
        "command": [line for name, line in own.items() if "." not in name and name not in _GROUPS],
        f"data; --data takes a folder, or {modules}": usual["data"],
        "model; --model takes a class of your own": usual.get("model", []),
        "trainer, the options used most": [own[f"--trainer.{name}"] for name in screen.trainer]
        + [switch] * bool(switches),
    }
    usage = " ".join(
        [parser.prog, *(name for name in own if name.isupper()), "[--OPTION VALUE ...]"]
    )
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
        name, text = (
            f"--{action.dest}" if action.option_strings else action.dest.upper(),
            action.help or "",
        )
        if (
            text != argparse.SUPPRESS
            and not text.startswith("Advanced:")
            and not name.endswith(".help")
        ):
            default = (
                str(action.default).lower()
                if isinstance(action.default, bool)
                else str(action.default)
            )
            is_shown = (
                action.default not in (None, argparse.SUPPRESS)
                and len(default) <= 12
                and name[2:] not in CLASS_OPTIONS
            )
            lines[name] = _line(f"{name} {default}" if is_shown else name, text, width)
    return lines


def _line(head: str, text: str, width: int) -> str:
    """Formats an option with the first sentence of its description, without markup."""
    text = re.sub(
        r":\w+:`~?([^`]*)`", lambda found: found[1].rsplit(".")[-1], " ".join(text.split())
    )
    text = re.split(r"(?<=[\w`)])[.;](?:\s|$)|:$", text.replace("``", ""), maxsplit=1)[0]
    return f"  {head:<36} {textwrap.shorten(text, width - 39, placeholder=' …')}"
