"""The command line's parser: LightningCLI's own, with messages of one line that name what was meant."""

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from torch import nn

from ..errors import UserError, end_with_error, listed
from ..upstream import options_of
from .classes import CLASS_OPTIONS, accepted, candidates, find_class, option_of, unknown_class
from .command_line import FOLLOWS, arrange, values_of
from .help import Screen, class_help, short_help


class OneLineErrorParser(LightningArgumentParser):
    """Says what is wrong in one line, with the nearest valid names, and exits with code 2.

    jsonargparse makes one for each class that an option takes, too. Options are not abbreviated.

    Args:
        screen: The contents of ``--help``; by default all options.
    """

    options: ClassVar[list[str]] = []
    """The options of the command, for suggestions; those of a class's parser alone would be too few."""

    own_names: ClassVar[dict[type, str]] = {}
    """The classes whose options have names of their own, as in ``--callbacks.last_checkpoint.every_minutes``."""

    def __init__(self, *args: Any, screen: Screen | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.screen = screen
        self._class: type | None = None

    def add_class_arguments(
        self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        """Remembers the class for messages, and changes defaults that do not suit a run.

        Loggers write into the run's folder; ``EarlyStopping`` watches ``--monitor``; a loss returns one number an image.
        """
        if nested_key is None:
            self._class = theclass
        added: list[str] = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in options_of(self):
            if action.dest == "save_dir" and action.required and issubclass(theclass, Logger):
                action.required, action.default = False, "."
            if action.dest == "monitor" and issubclass(theclass, EarlyStopping):
                action.required = False
            if action.dest == "reduction" and action.default == "mean" and issubclass(theclass, nn.Module):
                action.default = "none"
        return added

    def parse_command_line(self, args: Sequence[str], defaults: dict[str, Any], folder: type) -> Namespace:
        """Parses a command line in whatever order it names configs, classes and arguments; see ``arrange``."""
        try:
            if "--help-all" in args:
                for key in ("data", "model"):
                    for name in values_of(f"--{key}", [*args]):
                        find_class(key, name)  # imports it, so that it is shown
                sys.stdout.write(self.format_full_help())
                self.exit()
            OneLineErrorParser.options = [name for action in options_of(self) for name in action.option_strings]
            OneLineErrorParser.own_names = {
                cls: key for key, cls in (self.screen.groups if self.screen else {}).items()
            }
            arranged, classes = arrange([*args], defaults, folder)
            self.set_defaults(classes)
            return self.parse_args(arranged)
        except UserError as error:
            end_with_error(str(error))
        finally:
            self.set_defaults({key: None for key in defaults if key == "model"})

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """Returns the text of ``--help``."""
        return short_help(self, self.screen) if self.screen else super().format_help(formatter)

    def format_full_help(self) -> str:
        """Returns the text of ``--help-all``: every option of the command, of its data modules and models."""
        keys = {action.dest for action in options_of(self)} & {"data", "model"}
        classes = [(cls, key) for key in sorted(keys) for cls in candidates(key)]
        classes += [(cls, key) for key, cls in (self.screen.groups.items() if self.screen else ())]
        return "\n".join([super().format_help(), *(class_help(cls, key) for cls, key in classes)])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints a message of jsonargparse in one line and exits."""
        end_with_error(self.explain(message))

    def explain(self, message: str) -> str:
        """Rewords one of jsonargparse's messages: unknown, missing, linked, or a bad value."""
        if found := re.match(r"unrecognized arguments: ([^\s=]+)", message):
            return self._unknown(found[1])
        if found := re.match(r"Group '(\S+)' does not accept option '([^']+)'", message):
            return self._unknown(f"--{found[1]}.{found[2]}")
        if found := re.match(r"Option '([^']+)' is not accepted", message):
            return self._unknown(f"--{found[1]}")
        if found := re.match(r"the following arguments are required: ([^,]+)", message):
            if found[1] in [action.dest for action in options_of(self) if not action.option_strings]:
                return f"{found[1].upper()} is missing, as in: {self.prog} {found[1].upper()}; see --help"
            if self._class is not None and option_of(self._class) is None:
                return f"{self._class.__name__} needs its option '{found[1]}'"
            return f"{self._in_full(found[1])} is required" + (f" by {self._class.__name__}" if self._class else "")
        if found := re.match(r'Linked "([^"]+)" must be given via "([^"]+)"', message):
            return f"--{found[1]} cannot be given: it follows from {found[2]}"
        if found := re.match(r'Parser key "([^"]+)"', message):
            return self._bad_value(self._in_full(found[1]), message)
        return " ".join(message.split())

    def _unknown(self, option: str) -> str:
        name = option.removeprefix("--").removesuffix("+")
        if self._class is None:
            own = [] if self.screen else [name for action in options_of(self) for name in action.option_strings]
            nearest = get_close_matches(option, own, n=1, cutoff=0.75) or nearest_options(option, self.options)
            return f"there is no option '{option}'{_did_you_mean(nearest)}"
        if (key := option_of(self._class)) is None:
            nearest = get_close_matches(name, accepted(self._class), n=1)
            return f"{self._class.__name__} has no option '{name}'{f'; did you mean {nearest[0]}?' if nearest else ''}"
        text = f"--{key}.{name}: {self._class.__name__} has no option '{name}'"
        if nearest := get_close_matches(name, accepted(self._class), n=1, cutoff=0.75):
            return f"{text}; did you mean --{key}.{nearest[0]}?"
        if having := [cls.__name__ for cls in candidates(key) if name in accepted(cls)]:
            return f"{text}; {listed(having[:3])} {'has' if len(having) == 1 else 'have'} it"
        return text + _did_you_mean(nearest_options(option, self.options)[:1])

    def _bad_value(self, option: str, message: str) -> str:
        key = option.removeprefix("--")
        unknown = r"path string: (\S+)|class_path '([^']+)'|not correspond[\s\S]*value: (\S+)\s*$"
        if key in CLASS_OPTIONS and (found := re.search(unknown, message)):
            return unknown_class(key, next(filter(None, found.groups())))
        given = re.search(r"(?:Given value|Got value):[ \t]*(.*?)\s*$|: (\S+) does not conform|: '(.*?)'$", message)
        value = next(filter(None, given.groups()), "") if given else ""
        if found := re.search(r"does not conform to restriction (v[^\n]+)", message):
            return f"{option} must be {re.sub(r'v(?=[<>=])', '', found[1])}, got {value}"
        kinds = re.findall(r"Expected an? (.+?)(?:\. Got|\n|$)|Not of type (\w+)", message)
        wanted = [kind for kind in dict.fromkeys(map(_readable, kinds)) if kind != "None" and "path" not in kind]
        if wanted and given:
            return f"{option}: expected {' or '.join(wanted)}, not '{value}'"
        lines = [
            line.strip(" -")
            for line in message.split("\n")[1:]
            if not re.match(r"[\s-]*(Does not|Sub|Err|Given|Expected a path|Expected a <class .NoneType|$)", line)
        ]
        return f"{option}: {' '.join(lines[0].split()) if lines else ' '.join(message.split())}"

    def _in_full(self, name: str) -> str:
        """Returns the option for an argument of the class."""
        key = (self.own_names.get(self._class) or option_of(self._class)) if self._class else None
        if self._class is not None and key is None:
            return f"{self._class.__name__}'s {name}"
        return f"--{key}.{name}" if key else f"--{name.removeprefix('--').replace('.init_args', '')}"


def nearest_options(option: str, options: Sequence[str]) -> list[str]:
    """Finds what was meant: an option of the same last name elsewhere, or one that is spelled much alike."""
    within = [f"--{key}.{name}" for key in CLASS_OPTIONS for cls in candidates(key) for name in accepted(cls)]
    known = [name for name in dict.fromkeys([*options, *within]) if name[2:] not in FOLLOWS and name.startswith("--")]
    usual = [name for name in known if name.startswith(("--data.", "--model.optimizer.", "--trainer.max_", "--seed"))]
    wanted = _last(option).replace("-", "_")
    for names in (usual, known):
        same = [name for name in names if _last(name) == wanted]
        if same := same or [name for name in names if wanted in re.split(r"(?<=[a-z])_", _last(name))]:
            return same[:2]
    close = get_close_matches(wanted, [_last(name) for name in known], n=1, cutoff=0.6)
    return get_close_matches(option, known, n=2, cutoff=0.8) or [name for name in known if [_last(name)] == close][:2]


def _last(option: str) -> str:
    return option.rsplit(".", 1)[-1].lstrip("-")


def _did_you_mean(nearest: list[str]) -> str:
    return f"; did you mean {' or '.join(nearest)}?" if nearest else "; --help-all lists what there is"


def _readable(kind: tuple[str, str]) -> str:
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", "".join(kind)).strip()
    text = re.sub(r"typing\.Literal\[(.+)\]", lambda found: found[1].replace("'", ""), text)
    return {"NoneType": "None", "tuple": "a list as [A,B]", "list": "a list as [A,B]"}.get(text, text)
