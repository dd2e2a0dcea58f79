"""The command line's parser: LightningCLI's own, with messages of one line that name what was meant."""

import argparse
import re
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn, get_args, get_type_hints

from jsonargparse import Namespace, set_parsing_settings
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from torch import nn

from ..errors import end_with_error, listed
from ..upstream import options_of
from .classes import CLASS_OPTIONS, accepted, candidates, option_of, unknown_class
from .command_line import FOLLOWS
from .help import Screen, class_help, short_help

_MISSING = r'the following arguments are required: ([^,]+)|Parser key "([^"]+)":\s+Expected .*Got value: None'
_USUAL = ("--data.", "--model.optimizer.", "--trainer.max_", "--seed")


class OneLineErrorParser(LightningArgumentParser):
    """Says what is wrong in one line, with the nearest valid names, and exits with code 2.

    jsonargparse makes one for each class that an option takes, too. Options are not abbreviated. ``screen`` has the
    contents of ``--help``, by default all options.
    """

    command: ClassVar["OneLineErrorParser"]
    """The parser of the whole command, whose options messages about a class's suggest, too."""

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
            fields = [(name, cls) for name, hint in get_type_hints(theclass).items() for cls in get_args(hint)]
            self.callbacks = {cls: f"{nested_key}.{name}" for name, cls in fields if issubclass(cls, Callback)}
            set_parsing_settings(subclasses_disabled=[*self.callbacks])  # their class is not for the user to name
        added: list[str] = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in options_of(self):
            if action.dest == "save_dir" and action.required and issubclass(theclass, Logger):
                action.required, action.default = False, "."
            if action.dest == "monitor" and issubclass(theclass, EarlyStopping):
                action.required = False
            if action.dest == "reduction" and action.default == "mean" and issubclass(theclass, nn.Module):
                action.default = "none"
        return added

    def validate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> None:
        """Refuses null where a class takes a number or a text alone; jsonargparse takes it for not given."""
        super().validate(namespace, *args, **kwargs)
        for action in options_of(self) if self._class else ():
            if isinstance(action.default, float | int | str) and namespace.get(action.dest, action.default) is None:
                null = Namespace({action.dest: None})  # type: ignore[no-untyped-call]  # of jsonargparse
                super().validate(null, skip_unset=False, skip_required=True)

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        return short_help(self, self.screen) if self.screen else super().format_help(formatter)

    def format_full_help(self) -> str:
        """Returns the text of ``--help-all``: every option of the command, of its data modules and models."""
        keys = {action.dest for action in options_of(self)} & {"data", "model"}
        classes = [(cls, key) for key in sorted(keys) for cls in candidates(key)]
        return "\n".join([super().format_help(), *(class_help(*one) for one in [*classes, *self.callbacks.items()])])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Rewords a message of jsonargparse in one line, unknown, missing or a bad value, and exits."""
        if found := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            text = self._unknown(found[1])
        elif found := re.match(r"(?:Group '(\S+)' does not accept option|Option) '([^']+)'", message):
            text = self._unknown(f"--{'.'.join(filter(None, found.groups()))}")
        elif found := re.match(_MISSING, message):
            text = self._missing(found[1] or found[2])
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
        if having := [one.__name__ for one in candidates(key) if name in accepted(one)] if key in CLASS_OPTIONS else []:
            return f"{text}; {listed(having[:3])} {'has' if len(having) == 1 else 'have'} it"
        return f"{text}{self.command.did_you_mean(option)}"

    def did_you_mean(self, option: str) -> str:
        """The end of a message about an unknown option: the nearest one, if any is near."""
        known = [name for action in options_of(self) for name in action.option_strings]
        if self.screen:
            known += [f"--{key}.{name}" for key in CLASS_OPTIONS for cls in candidates(key) for name in accepted(cls)]
        nearest = nearest_option(option, [name for name in known if name[2:] not in FOLLOWS])
        return f"; did you mean {nearest}?" if nearest else "; --help-all lists what there is"

    def _missing(self, name: str) -> str:
        if name in [action.dest for action in options_of(self) if not action.option_strings]:
            return f"{name.upper()} is missing, as in: {self.prog} {name.upper()}; see --help"
        return f"{self._in_full(name)} is required" + (f" by {self._class.__name__}" if self._class else "")

    def _bad_value(self, option: str, message: str) -> str:
        key = option.removeprefix("--")
        unknown = r"path string: (\S+)|class_path '([^']+)'|not correspond[\s\S]*value: (\S+)\s*$"
        if key in CLASS_OPTIONS and (found := re.search(unknown, message)):
            return unknown_class(key, next(filter(None, found.groups())))
        given = re.search(r"(?:Given|Got) value: *(.*)|: (\S+) does not conform|: '(.*)'$", message)
        value = next(filter(None, given.groups()), "") if given else ""
        if found := re.search(r"does not conform to restriction (.+)", message):
            return f"{option} must be {found[1].replace('v', '')}, got {value}"
        kinds = re.findall(r"(?:Expected an?|Not of type) (.+?)(?:\. Got|:|\n|$)", message)
        wanted = [kind for kind in dict.fromkeys(map(_readable, kinds)) if kind != "NoneType" and "path" not in kind]
        if wanted and given:
            return f"{option}: expected {' or '.join(wanted)}, not '{value}'"
        frame = ("Parser key", "Does not", "Subtypes", "Errors", "Given", "Expected a")
        lines = [line for line in re.split(r"[\s-]*\n[\s-]*", message) if line and not line.startswith(frame)]
        return f"{option}: {lines[0] if lines else ' '.join(message.split())}"

    @property
    def _key(self) -> str | None:
        """The option that takes this class, without dashes, if there is one."""
        return (self.command.callbacks.get(self._class) or option_of(self._class)) if self._class else None

    def _in_full(self, name: str) -> str:
        """Returns the option for an argument of the class."""
        if self._class is None:
            return f"--{name.removeprefix('--').replace('.init_args', '')}"
        return f"--{self._key}.{name}" if self._key else f"{self._class.__name__}'s {name}"


def nearest_option(option: str, known: list[str]) -> str | None:
    """Finds what was meant: an option with that word in its last name, the usual ones first, or one spelled alike."""
    wanted = _last(option).replace("-", "_")
    if named := [name for name in known if wanted in (_last(name), *_last(name).split("_"))]:
        return min(named, key=lambda name: (not name.startswith(_USUAL), _last(name) != wanted))
    by_last = {_last(name): name for name in reversed(known)}
    close = get_close_matches(option, known, n=1, cutoff=0.8)
    return next(iter(close or [by_last[name] for name in get_close_matches(wanted, by_last, n=1, cutoff=0.6)]), None)


def _last(option: str) -> str:
    return option.rsplit(".", 1)[-1].lstrip("-")


def _readable(kind: str) -> str:
    kind = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind)
    kind = re.sub(r"typing\.Literal\[(.+)\]", lambda found: found[1].replace("'", ""), kind)
    return "a list as [A,B]" if kind in ("tuple", "list") else kind
