"""The text of ``--help``, which fits a screen or two, and of ``--help-all``; both come from signatures and docstrings."""

import argparse
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from project.data import FolderDataModule, ImageDataModule
from project.model import ImageClassifier

from ..errors import listed
from ..run.settings import subclasses
from .classes import CLASS_OPTIONS, ClassParser, class_parser

TRAINER = (
    "accelerator",
    "devices",
    "num_nodes",
    "strategy",
    "precision",
    "max_epochs",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "callbacks",
    "fast_dev_run",
)
"""The options of the Trainer that people use."""

RARE = {
    "--data.resize",
    "--data.interpolation",
    "--data.mean",
    "--data.std",
    "--data.prefetch_factor",
    "--data.device_cache",
    "--data.crop_padding",
    "--data.split_seed",
    "--model.arch_args",
    "--model.base_batch_size",
    "--model.layer_decay",
    "--model.lr_scheduler_interval",
}
"""Options of data and model that are left to ``--help-all``: they follow from others, or suit nearly everyone."""

TRAINER_IN_EVALUATION = ("accelerator", "devices", "num_nodes", "strategy", "precision", "limit_test_batches")

_GROUPS = {"--help", "--data", "--model", "--trainer", "--callbacks"}
_FROM_DATA = {"--model.class_names", "--model.preprocessing"}
_AUGMENTATION = {"crop_scale", "flip", "crop_padding", "cutout"}


class Option(NamedTuple):
    """One option.

    Attributes:
        name: As it is typed, with dashes.
        default: Its default.
        text: What it does.
    """

    name: str
    default: object
    text: str


class Screen(NamedTuple):
    """What ``--help`` shows of a command.

    Attributes:
        trainer: The options of the Trainer, without ``--trainer.``.
        trains: Whether the command trains, so that it has options of the model and of augmentation.
        examples: Command lines.
    """

    trainer: Sequence[str]
    trains: bool
    examples: Sequence[str]


def short_help(parser: ClassParser, screen: Screen) -> str:
    """The help that shows what most people need.

    Args:
        parser: The command's parser.
        screen: What to show of it.
    """
    own = {option.name: option for option in options_of(parser)}
    trainer = [own[f"--trainer.{name}"] for name in screen.trainer]
    model = [
        option
        for option in options_of(class_parser(ImageClassifier), "--model.")
        if option.name not in _FROM_DATA | RARE
    ]
    rest = [option for name, option in own.items() if name.count(".") == 0 and name not in _GROUPS]
    callbacks = [name.removeprefix("--callbacks.") for name in own if name.startswith("--callbacks.")]
    if callbacks:
        text = f"Switches a default callback off: {', '.join(callbacks)}"
        trainer.append(Option("--callbacks.NAME false", None, text))
    sections = [
        ("command", rest),
        (f"data, the options used most; --data takes a folder, or {_data_modules()}", _data_options(screen.trains)),
        (
            "model, the options used most; --model takes a class of your own, as in my_package.MyClassifier",
            model if screen.trains else [],
        ),
        ("trainer, the options used most", trainer),
    ]
    lines = [f"usage: {parser.prog} [--OPTION VALUE ...]", "", *textwrap.wrap(parser.description or "", _width())]
    for title, options in sections:
        if options:
            lines += ["", *textwrap.wrap(f"{title}:", _width()), *(_line(option) for option in options)]
    lines += ["", "examples:", *(f"  {example}" for example in screen.examples), ""]
    lines += [f"All options: {parser.prog} --help-all"]
    return "\n".join(lines) + "\n"


def class_help(cls: type, key: str) -> str:
    """All options of a class, in full.

    Args:
        cls: The class.
        key: The option that takes it, without dashes.
    """
    lines = [f"--{key} {cls.__name__}: {_first_sentence(inspect.getdoc(cls) or '')}"]
    for option in options_of(class_parser(cls), f"--{key}."):
        lines.append(f"  {option.name}{_default(option)}")
        lines += textwrap.wrap(option.text, _width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) + "\n"


def data_classes() -> list[type]:
    """The data modules that can be named."""
    return [cls for cls in subclasses(ImageDataModule) if not inspect.isabstract(cls)]


def options_of(parser: ClassParser, prefix: str = "--") -> Iterable[Option]:
    """The options of a parser."""
    for action in parser.actions():
        name = f"{prefix}{action.dest}"
        if action.option_strings and action.help != argparse.SUPPRESS and not name.endswith(".help"):
            yield Option(name, action.default, _plain(action.help or ""))


def _data_modules() -> str:
    return listed((cls.__name__ for cls in data_classes() if cls is not FolderDataModule), word="or")


def _data_options(trains: bool) -> list[Option]:
    shared = inspect.signature(ImageDataModule).parameters
    hidden = {"seed"} if trains else {"seed", *_AUGMENTATION}
    options = [
        (option.name.removeprefix("--data."), option)
        for option in options_of(class_parser(FolderDataModule), "--data.")
    ]
    options.sort(key=lambda pair: pair[0] in shared)
    return [option for name, option in options if name not in hidden and option.name not in RARE]


def _line(option: Option) -> str:
    text = _first_sentence(option.text)
    head = f"  {option.name}{_default(option)}"
    space = _width() - 39
    return f"{head:<38} {textwrap.shorten(text, max(space, 20), placeholder=' …')}"


def _default(option: Option) -> str:
    if option.default is None or option.default == argparse.SUPPRESS or option.name.removeprefix("--") in CLASS_OPTIONS:
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
