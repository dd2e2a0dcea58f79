"""The command line's parser: LightningCLI's own, with errors of one line that name what was meant."""

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import chain, product
from typing import Any, ClassVar, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger
from torch import nn

from project.model import ImageClassifier

from ..errors import UserError, end_with_error
from ..run.settings import subclasses
from .arguments import last_value
from .classes import (
    CALLBACK_OPTIONS,
    CLASS_OPTIONS,
    ClassParser,
    accepted,
    candidates,
    find_class,
    no_such_default,
    no_such_option,
    option_of,
)
from .config_file import Config
from .given import arrange
from .help import Screen, class_help, data_classes, short_help


class OneLineErrorParser(ClassParser):
    """Says what is wrong in one line, with the nearest valid names, and exits with code 2.

    jsonargparse makes one for each class that an option takes, too. Options are not abbreviated.

    Args:
        screen: What ``--help`` shows; by default everything.

    Attributes:
        configs: The configs on the command line; all parsers share it, so that those of classes know it too.
        flags: The options that are given by flags, without dashes.
    """

    configs: ClassVar[list[Config]] = []
    flags: ClassVar[set[str]] = set()

    def __init__(self, *args: Any, screen: Screen | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self._screen = screen
        self._class: type | None = None

    def add_class_arguments(
        self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        """Remembers the class whose parser this is, for messages, and changes defaults that do not suit a run.

        Loggers need no place, as a run's folder is one; ``EarlyStopping`` no metric, as ``--monitor`` is one; a loss must
        not take the mean over one process's images.
        """
        if nested_key is None:
            self._class = theclass
        added: list[str] = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in self.actions():
            if action.dest == "save_dir" and action.required and issubclass(theclass, Logger):
                action.required, action.default = False, "."
            if action.dest == "monitor" and issubclass(theclass, EarlyStopping):
                action.required = False
            if action.dest == "reduction" and action.default == "mean" and issubclass(theclass, nn.Module):
                action.default = "none"
        return added

    def parse_command_line(self, args: Sequence[str]) -> Namespace:
        """Parses a command line in whatever order it gives configs, classes, and what is given to these.

        Args:
            args: The command line.
        """
        if "--help-all" in args:
            for key in self._class_options():
                find_class(key, last_value(f"--{key}", [*args]))  # imports it, so that it is shown
            sys.stdout.write(self.format_full_help())
            self.exit()
        keys = self._class_options()
        defaults = {key: self.get_default(key) for key in keys if not key.startswith("model.")}
        try:
            arranged, OneLineErrorParser.configs = arrange([*args], self, keys)
            OneLineErrorParser.flags = {word.split("=")[0].removeprefix("--") for word in arranged} - {"config"}
            return self.parse_args(arranged)
        except UserError as error:
            end_with_error(str(error))
        finally:
            plain = {key: value.as_dict() if isinstance(value, Namespace) else value for key, value in defaults.items()}
            self.set_defaults(plain)  # without those of classes that others replaced

    def _class_options(self) -> list[str]:
        """Those options that take a class, and those of such a class that take one; callbacks are a list of them."""
        names = {action.dest for action in self.actions() if not action.dest.endswith(".help")}
        groups = {name.rpartition(".")[0] for name in names}
        known = names & {*CLASS_OPTIONS} - groups - {"trainer.callbacks"}
        return [key for key in CLASS_OPTIONS if key in known or (key.split(".")[0] in known and key not in names)]

    def format_help(self, formatter: argparse.HelpFormatter | None = None) -> str:
        """The text of ``--help``."""
        return short_help(self, self._screen) if self._screen else super().format_help(formatter)

    def format_full_help(self) -> str:
        """The text of ``--help-all``: every option of the command, and of each model, data module, default callback."""
        models = subclasses(ImageClassifier) if "model" in self._class_options() else []
        callbacks = CALLBACK_OPTIONS.items() if "callbacks" in {action.dest for action in self.actions()} else ()
        classes = [*((cls, "model") for cls in models), *((cls, "data") for cls in data_classes())]
        classes += [(cls, key) for key, cls in callbacks]
        return "\n".join([super().format_help(), *(class_help(cls, key) for cls, key in classes)])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the explanation of jsonargparse's message and exits."""
        end_with_error(self.explain(message))

    def explain(self, message: str) -> str:
        """Rewords one of jsonargparse's messages."""
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            return self._unknown(found[1].split("=")[0])
        if found := re.match(r"Group '(\S+)' does not accept option '([^']+)'", message):
            return self._unknown(f"--{found[1]}.{found[2]}")
        if found := re.match(r"Option '([^']+)' is not accepted", message):
            return self._unknown(found[1])
        if found := re.match(r"the following arguments are required: (.+)", message):
            return self._required(found[1].split(", ")[0])
        if found := re.match(r'Linked "([^"]+)" must be given via "([^"]+)"', message):
            return f"--{found[1]} cannot be given: it follows from {found[2]}"
        if found := re.match(r'Parser key "([^"]+)"', message):
            return self._bad_value(found[1], message)
        return " ".join(message.split())

    def _unknown(self, option: str) -> str:
        name = option.removeprefix("--")
        if self._has_model_of_checkpoint(name):
            return self._not_the_model(name)
        key = option_of(self._class) if self._class else None
        if self._class is not None and key is None:
            nearest = get_close_matches(name, accepted(self._class), n=1, cutoff=0.6)
            return f"{self._class.__name__} has no option '{name}'{_did_you_mean(nearest)}"
        if key is not None and self._class is not None:
            return f"{self._place(f'{key}.{name}')}{no_such_option(key, self._class, name.removesuffix('+'))}"
        if name.removesuffix("+") in CLASS_OPTIONS or not option.startswith("-"):
            return f"{self._place(name)}there is no option '{option}'{self._see_help()}"
        if name.startswith("callbacks."):
            return f"{self._place(name)}{no_such_default(name.split('.')[1])}"
        nearest = nearest_options(option, self._options())
        return f"{self._place(name)}there is no option '{option}'{_did_you_mean(nearest) or self._see_help()}"

    def _has_model_of_checkpoint(self, name: str) -> bool:
        """Whether it is an option of the model, in a command that takes the model from a checkpoint."""
        return name.split(".")[0] == "model" and "--ckpt_path" in self._own_options()

    def _not_the_model(self, name: str) -> str:
        shown = name if name in self.flags else "model"
        return f"{self._place(shown)}there is no option '--{shown}' here: the checkpoint says what the model is"

    def _see_help(self) -> str:
        return f"; {'--help-all' if self._screen else '--help'} lists what there is"

    def _required(self, name: str) -> str:
        if self._class is not None and option_of(self._class) is None:
            return f"{self._class.__name__} needs its option '{name}'"
        if name in [action.dest for action in self.actions() if not action.option_strings]:
            return f"{name.upper()} is missing, as in: {self.prog} {name.upper()}; see --help"
        return f"{self._in_full(name)} is required" + (f" by {self._class.__name__}" if self._class else "")

    def _bad_value(self, key: str, message: str) -> str:
        if self._has_model_of_checkpoint(key):
            return self._not_the_model(key)
        if key in CALLBACK_OPTIONS:
            return f"{self._place(key)}--{key}: expected true, false or options, as in --{key}.NAME VALUE"
        named = re.search(
            r"dot import path string: (\S+)|given class_path '([^']+)'|not correspond[\s\S]*value: (\S+)\s*$", message
        )
        option, place = self._in_full(key), self._place(self._in_full(key).removeprefix("--"))
        key = option.removeprefix("--")
        if key in CLASS_OPTIONS and named:
            name = next(group for group in named.groups() if group)
            names = [cls.__name__ for cls in candidates(key) if cls is not CLASS_OPTIONS[key]]
            nearest = _nearest_names(name.rsplit(".")[-1], names)
            kind = "loss" if key == "model.loss" else CLASS_OPTIONS[key].__name__
            folder = " and no such folder" if key == "data" and "/" in name else ""
            if key == "model":
                nearest.append(f"--model.arch {name}")
            return f"{place}{option}: there is no {kind} '{name}'{folder}{_did_you_mean(nearest)}"
        if found := re.search(r"expects a function or a callable class: ([^\n]+)", message):
            problem = _readable(found[1].split(". Got value")[0].rstrip(".")).replace("[Any]", "")
            return f"{place}{option}: {problem}{_similar(problem)}"
        if (found := re.search(r"dot import path string: (\S+)", message)) and "Callable" in message:
            return f"{place}{option}: '{found[1]}' needs its module, as in torchvision.transforms.v2.{found[1]}"
        if "Unable to load config" in message:
            return f"{place}{option} is a group of options, as in {option}.NAME VALUE, or takes a config file"
        value = re.search(r"(?:Given value|Got value):[ \t]*(.*?)\s*$", message)
        kinds = (_readable(kind) for kind in re.findall(r"Expected an? (.+?)(?:\. Got|\n|$)", message))
        expected = dict.fromkeys(kind for kind in kinds if kind != "None")
        wanted = [kind for kind in expected if "path but" not in kind and "import path" not in kind] or list(expected)
        if value and value[1] == "None":
            return self._required(key)
        if wanted and value:
            return f"{place}{option}: expected {' or '.join(wanted)}, not '{value[1]}'"
        return f"{place}{option}: {_out_of_range(message) or ' '.join(message.split(':', 1)[-1].split())}"

    def _in_full(self, name: str) -> str:
        """The option for what a class calls its argument."""
        key = option_of(self._class) if self._class else None
        if self._class is not None and key is None:
            return f"{self._class.__name__}'s {name}"
        return f"--{key}.{name}" if key else f"--{name}"

    def _place(self, name: str) -> str:
        """Where a config says this, to be put before a message."""
        if name in self.flags:
            return ""
        first, *rest = name.split(".")
        paths = [
            (first, *chain.from_iterable((*inner, part) for inner, part in zip(how, rest, strict=True)))
            for how in product([(), ("init_args",)], repeat=len(rest))
        ]
        found = (config.place(*path) for config in reversed(self.configs) for path in paths if path in config.lines)
        place = next(found, None)
        return f"{place}: " if place else ""

    def _options(self) -> list[str]:
        """All options, those of the classes that options take included."""
        nested = [  # the seed of the data follows from --seed_everything
            f"--{key}.{name}"
            for key in (*CLASS_OPTIONS, *CALLBACK_OPTIONS)
            for cls in (candidates(key) if key in CLASS_OPTIONS else [CALLBACK_OPTIONS[key]])
            for name in inspect.signature(cls).parameters
            if name not in ("args", "kwargs", "params", "seed") and f"{key}.{name}" != "model.lr_scheduler.optimizer"
        ]
        own = self._own_options()
        return list(dict.fromkeys(own + nested)) if "--config" in own else own

    def _own_options(self) -> list[str]:
        return [option for action in self.actions() for option in action.option_strings if option.startswith("--")]


def nearest_options(option: str, options: list[str]) -> list[str]:
    """Finds what was meant: an option of the same name elsewhere, or one that is spelled much alike."""
    wanted = _last(option).replace("-", "_")
    classes = tuple(f"--{key}." for key in CLASS_OPTIONS if key not in ("data", "model", "model.optimizer"))
    likely = [name for name in options if not name.startswith(classes)]
    for found in (
        [name for name in likely if _last(name) == wanted],
        [name for name in likely if _last(name).startswith(f"{wanted}_") or _last(name).endswith(f"_{wanted}")],
        [name for name in options if _last(name) == wanted],
    ):
        if found:
            return found[:3]
    close = get_close_matches(option, options, n=3, cutoff=0.8)
    last = get_close_matches(wanted, {_last(name) for name in options}, n=2, cutoff=0.6)
    return close or [name for name in options if _last(name) in last][:3]


def _last(option: str) -> str:
    return option.rsplit(".", 1)[-1].lstrip("-")


def _nearest_names(name: str, names: list[str]) -> list[str]:
    """Those that differ in capitals alone, or else those that are spelled much alike."""
    same = [known for known in names if known.lower() == name.lower()]
    return same or get_close_matches(name, names, n=3, cutoff=0.5)


def _did_you_mean(nearest: list[str]) -> str:
    return f"; did you mean {' or '.join(nearest)}?" if nearest else ""


def _similar(problem: str) -> str:
    """What a module has instead of what it lacks, as Python says that."""
    found = re.match(r"module '([\w.]+)' has no attribute '(\w+)'", problem)
    return _did_you_mean(get_close_matches(found[2], dir(sys.modules.get(found[1])), n=1)) if found else ""


def _out_of_range(message: str) -> str | None:
    """What is wrong with a number that has to be above 0, or from 0, in jsonargparse's types."""
    found = re.search(r"\b(Positive|NonNegative)(Int|Float)\b", message)
    got = re.search(r"Given value: (\S+)|\w+: (\S+) does not conform|base 10: '(.+?)'|to float: '(.+?)'", message)
    if found is None or got is None:
        return None
    number = "a whole number" if found[2] == "Int" else "a number"
    least = "above 0" if found[1] == "Positive" else "from 0"
    return f"expected {number} {least}, not '{next(filter(None, got.groups()))}'"


def _readable(kind: str) -> str:
    kind = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind).strip()
    kind = re.sub(r"typing\.Literal\[(.+)\]", lambda found: found[1].replace("'", ""), kind)
    return {"NoneType": "None", "tuple": "a list as [A,B]", "list": "a list as [A,B]"}.get(kind, kind)
