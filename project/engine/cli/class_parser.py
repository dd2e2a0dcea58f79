"""Parser of commands that build classes from options: LightningCLI's, with short help and one-line errors."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any, NoReturn, get_args, get_type_hints

import torch
from jsonargparse import Namespace, set_parsing_settings
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger
from torch import nn

from ..upstream import options_of
from .classes import CLASS_OPTIONS, Bases, candidates, class_parser
from .entry import end_with_error
from .parser import CommandParser, one_line, option_line, option_lines

FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""


@dataclass(frozen=True)
class Screen:
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


class ClassError(argparse.ArgumentError):
    """An error about the arguments of a class."""

    def __init__(self, cls: type | None, message: str) -> None:
        super().__init__(None, message)
        self.cls = cls


class ClassParser(CommandParser, LightningArgumentParser):
    """The parser of a command, and of each class that an option takes, which jsonargparse makes like it.

    ``screen`` has the contents of ``--help``, ``bases`` the base of each option that takes a class.
    """

    def __init__(
        self,
        *args: Any,
        screen: Screen | None = None,
        bases: Bases = CLASS_OPTIONS,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.screen = screen
        self.bases = dict(bases)
        self.callbacks: dict[type, str] = {}
        self._class: type | None = None

    def options(self) -> Sequence[argparse.Action]:
        """Returns all options."""
        return options_of(self)

    def add_class_arguments(
        self, theclass: type, nested_key: str | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        """Remembers the class for messages, and changes defaults that do not suit a run.

        Loggers write into the run's folder; a loss returns one number per image. The callbacks of
        a dataclass have options of their own, as in ``--callbacks.first_batch.count 8``.
        """
        if nested_key is None:
            self._class = theclass
        elif is_dataclass(theclass):
            hints = get_type_hints(theclass).items()
            fields = [(name, cls) for name, hint in hints for cls in get_args(hint)]
            self.callbacks = {
                cls: f"{nested_key}.{name}" for name, cls in fields if issubclass(cls, Callback)
            }
            set_parsing_settings(
                subclasses_disabled=[*self.callbacks]
            )  # users do not name their class
        added: list[str] = super().add_class_arguments(theclass, nested_key, *args, **kwargs)
        for action in self.options():
            if action.dest == "save_dir" and action.required and issubclass(theclass, Logger):
                action.required, action.default = False, "."
            if action.dest == "reduction" and issubclass(theclass, nn.Module):
                action.default = "none" if action.default == "mean" else action.default
            if isinstance(action.default, Enum):  # YAML has neither
                action.default = action.default.value
            if isinstance(action.default, torch.device):
                action.default = str(action.default)
        return added

    def validate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> None:
        """Refuses null if a class has a default and takes no null; jsonargparse takes it for not given."""
        super().validate(namespace, *args, **kwargs)
        for action in self.options() if self._class else ():
            if action.default is not None and namespace.get(action.dest, action.default) is None:
                null = Namespace({action.dest: None})  # type: ignore[no-untyped-call]  # of jsonargparse
                super().validate(null, skip_unset=False, skip_required=True)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Prints the error about the innermost class in one line, and exits with code 2."""
        if not self.exit_on_error:
            raise ClassError(self._class, message) from ex
        of_class = [error for error in causes(ex) if isinstance(error, ClassError)]
        if of_class and (cls := of_class[-1].cls):
            bases = {key: base for base, key in self.callbacks.items()} | self.bases
            key = next((key for key, base in bases.items() if issubclass(cls, base)), cls.__name__)
            end_with_error(one_line(str(of_class[-1]), key))
        super().error(message, ex)

    def sections(self, width: int) -> dict[str, list[str]]:
        """Returns the lines of the options that most people need, by their heading."""
        screen = self.screen
        if screen is None:
            return super().sections(width)
        hidden = {
            "--config",
            "--data",
            "--model",
            *(f"--{name}" for name in FOLLOWS),
            *screen.hidden,
        }
        lines = option_lines(self.options(), width)
        names = [name.split(".")[1] for name in lines if name.startswith("--callbacks.")]
        switch = f"Switches a callback off: {', '.join(dict.fromkeys(names))}"
        modules = [cls.__name__ for cls in candidates(self.bases["data"]) if cls is not screen.data]
        sections = {
            "command": [line for name, line in lines.items() if not {name, "."} & {*hidden, *name}],
            "trainer, the options used most": [
                *(lines[f"--trainer.{name}"] for name in screen.trainer),
                *([option_line("--callbacks.NAME false", switch, width)] if names else []),
            ],
        }
        headings = {"data": f"a folder, or {', '.join(modules)}", "model": "a class of your own"}
        for key, cls in {"data": screen.data, "model": screen.model}.items():
            options = options_of(class_parser(cls, key)) if cls else []
            usual = [option for option in options if not str(option.help).startswith("Advanced:")]
            lines = option_lines(usual, width)
            sections[f"{key}; --{key} takes {headings[key]}"] = [
                line for name, line in lines.items() if name not in hidden
            ]
        return sections

    def format_full_help(self) -> str:
        """Returns the text of ``--help-all``: every option of the command, of its data modules and models."""
        keys = [
            key for key in ("data", "model") if any(action.dest == key for action in self.options())
        ]
        classes = [(cls, key) for key in keys for cls in candidates(self.bases[key])]
        text = LightningArgumentParser.format_help(self)
        for cls, key in [*classes, *self.callbacks.items()]:
            text += f"\n--{key} {cls.__name__}: {class_parser(cls, key).format_help().strip()}\n"
        return text.replace("Advanced: ", "")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__
