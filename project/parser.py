"""The command line's parser: LightningCLI's own, with errors of one line that name what was meant."""

import inspect
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NoReturn

import jsonargparse._typehints as jsonargparse_typehints
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser


def _start_afresh(_parser_or_action: Any, previous: Any, value: Any) -> None:
    """Lets a newly named class start from its own defaults.

    jsonargparse keeps whatever the old and the new class both accept, defaults too: ``--model.optimizer AdamW`` would
    start with the learning rate of SGD. It has no setting for that.
    """
    if previous and "init_args" in previous and previous["class_path"] != value["class_path"]:
        previous["init_args"] = Namespace()  # type: ignore[no-untyped-call]  # has no annotations


jsonargparse_typehints.discard_init_args_on_class_path_change = _start_afresh


class OneLineErrorParser(LightningArgumentParser):
    """Says what is wrong in one line, with the nearest valid names, and exits with code 2.

    Attributes:
        bases: For each option that takes a class, what the class must derive from.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bases: dict[str, type] = {}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the explanation of jsonargparse's message and exits."""
        sys.stderr.write(f"error: {self.explain(message)}\n")
        sys.exit(2)

    def explain(self, message: str) -> str:
        """Rewords one of jsonargparse's messages."""
        if found := re.match(r"unrecognized arguments: (\S+)", message):
            option = found[1].split("=")[0]
            return f"there is no option '{option}'{_did_you_mean(option, self._options())}"
        if found := re.match(r"Group '(\S+)' does not accept option '([^']+)'", message):
            option = f"--{found[1]}.{found[2]}"
            return f"there is no option '{option}'{_did_you_mean(option, self._options())}"
        if found := re.match(r"Option '([^']+)' is not accepted", message):
            names = [option.removeprefix("--") for option in self._options()] + self._parameters()
            return f"there is no option '{found[1]}'{_did_you_mean(found[1], names)}"
        if found := re.match(r'Parser key "([^"]+)"', message):
            return self._explain_value(found[1], message)
        return " ".join(message.split())

    def _explain_value(self, key: str, message: str) -> str:
        value = re.search(r"(?:Given value|Got value): (.+?)\s*$", message)
        named = re.search(
            r"Expected a dot import path string: (\S+)|given class_path '([^']+)'|value: ([\w.]+)\s*$", message
        )
        if key in self.bases and named and "class" in message + "dot import path" and "init_args" not in message:
            name = next(group for group in named.groups() if group)
            classes = _subclasses(self.bases[key])
            meant = _did_you_mean(name.rsplit(".")[-1], classes)
            return f"--{key}: there is no {self.bases[key].__name__} '{name}'{meant}"
        wanted = dict.fromkeys(_readable(kind) for kind in re.findall(r"Expected an? (.+?)(?:\. Got|\n|$)", message))
        wanted.pop("none", None)
        if wanted and value:
            return f"--{key}: expected {' or '.join(wanted)}, not '{value[1]}'"
        return f"--{key}: {' '.join(message.split(':', 1)[-1].split())}"

    def _options(self) -> list[str]:
        """All options, those of the classes that options take included."""
        own = [option for action in self._actions for option in action.option_strings]
        return own + [f"--{key}.{name}" for key, base in self.bases.items() for name in _parameters(base)]

    def _parameters(self) -> list[str]:
        return [name for base in self.bases.values() for name in _parameters(base)]


def _did_you_mean(word: str, names: Iterable[str]) -> str:
    nearest = get_close_matches(word, dict.fromkeys(names), n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(nearest)}?" if nearest else "; --help lists what there is"


def _subclasses(base: type) -> list[str]:
    direct: list[type] = [cls for cls in base.__subclasses__() if not cls.__name__.startswith("_")]
    return [cls.__name__ for cls in direct] + [name for cls in direct for name in _subclasses(cls)]


def _parameters(base: type) -> list[str]:
    classes: list[type] = [base, *base.__subclasses__()]
    return [name for cls in classes for name in inspect.signature(cls).parameters if name not in ("args", "kwargs")]


def _readable(kind: str) -> str:
    kind = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", kind).strip()
    kind = re.sub(r"typing\.Literal\[(.+)\]", lambda found: found[1].replace("'", ""), kind)
    return "none" if kind == "NoneType" else kind
