"""The command line's parser: LightningCLI's own, with errors of one line that name what was meant."""

import inspect
import re
from difflib import get_close_matches
from typing import Any, NoReturn

import jsonargparse._typehints as jsonargparse_typehints
from jsonargparse import Namespace
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import Strategy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from project.data import ImageDataModule
from project.errors import end_with_error

CLASS_OPTIONS: dict[str, type] = {
    "data": ImageDataModule,
    "model.optimizer": Optimizer,
    "model.lr_scheduler": LRScheduler,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
    "trainer.strategy": Strategy,
}
"""The options that take a class, and what it must derive from."""


def _start_afresh(_parser_or_action: Any, previous: Any, value: Any) -> None:
    """Lets a newly named class start from its own defaults.

    jsonargparse keeps whatever the old and the new class both accept, defaults too: ``--model.optimizer AdamW`` would
    start with the learning rate of SGD. It has no setting for that.
    """
    if previous and "init_args" in previous and previous["class_path"] != value["class_path"]:
        previous["init_args"] = Namespace()  # type: ignore[no-untyped-call]  # has no annotations


jsonargparse_typehints.discard_init_args_on_class_path_change = _start_afresh


class OneLineErrorParser(LightningArgumentParser):
    """Says what is wrong in one line, with the nearest valid names, and exits with code 2."""

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
        if found := re.match(r"the following arguments are required: (\S+)", message):
            return f"{self._in_full(found[1])} is required"
        if found := re.match(r'Linked "([^"]+)" must be given via "([^"]+)"', message):
            return f"--{found[1]} cannot be given: it follows from {found[2]}"
        if found := re.match(r'Parser key "([^"]+)"', message):
            return self._bad_value(found[1], message)
        return " ".join(message.split())

    def _unknown(self, option: str) -> str:
        nested = not option.startswith("--")
        names = [name.rsplit(".")[-1] for name in self._options()] if nested and "." not in option else self._options()
        nearest = [self._in_full(name) for name in get_close_matches(option, dict.fromkeys(names), n=3, cutoff=0.5)]
        return f"there is no option '{option}'{_did_you_mean(nearest)}"

    def _bad_value(self, key: str, message: str) -> str:
        named = re.search(
            r"dot import path string: (\S+)|given class_path '([^']+)'|not correspond[\s\S]*value: (\S+)\s*$", message
        )
        if key in CLASS_OPTIONS and named:
            name = next(group for group in named.groups() if group)
            names = [cls.__name__ for cls in _classes(CLASS_OPTIONS[key])[1:]]
            nearest = get_close_matches(name.rsplit(".")[-1], names, n=3, cutoff=0.5)
            return f"--{key}: there is no {CLASS_OPTIONS[key].__name__} '{name}'{_did_you_mean(nearest)}"
        value = re.search(r"(?:Given value|Got value): (.+?)\s*$", message)
        kinds = (_readable(kind) for kind in re.findall(r"Expected an? (.+?)(?:\. Got|\n|$)", message))
        wanted = dict.fromkeys(kind for kind in kinds if kind != "None")
        if value and value[1] == "None":
            return f"{self._in_full(key)} is required"
        if wanted and value:
            return f"{self._in_full(key)}: expected {' or '.join(wanted)}, not '{value[1]}'"
        return f"{self._in_full(key)}: {' '.join(message.split(':', 1)[-1].split())}"

    def _in_full(self, name: str) -> str:
        """Finds the option that ends with what a class calls its argument."""
        options = self._options()
        if f"--{name}" in options:
            return f"--{name}"
        return next((option for option in options if option.endswith(f".{name}")), name)

    def _options(self) -> list[str]:
        """All options, those of the classes that options take included."""
        nested = [f"--{key}.{name}" for key, base in CLASS_OPTIONS.items() for name in _parameters(base)]
        own = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
        return nested + (own if "--config" in own else [])  # the parser of a class does not know its place


class PlainParser(OneLineErrorParser):
    """The parser of a command with a few options of its own, none of which takes a class."""

    def _options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]


def _did_you_mean(nearest: list[str]) -> str:
    return f"; did you mean {' or '.join(nearest)}?" if nearest else "; --help lists what there is"


def _classes(base: type) -> list[type]:
    derived: list[type] = base.__subclasses__()
    return [base] + [found for cls in derived for found in _classes(cls)]


def _parameters(base: type) -> list[str]:
    names = [name for cls in _classes(base) for name in inspect.signature(cls).parameters]
    return [name for name in dict.fromkeys(names) if name not in ("args", "kwargs")]


def _readable(kind: str) -> str:
    kind = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind).strip()
    kind = re.sub(r"typing\.Literal\[(.+)\]", lambda found: found[1].replace("'", ""), kind)
    return "None" if kind == "NoneType" else kind
