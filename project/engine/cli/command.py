"""The LightningCLI of commands that take data, model and trainer, with options in any order."""

import json
import sys
import textwrap
from argparse import Action
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from torch import nn

from ..errors import LINES, UserError, printable
from ..run.progress import note
from ..upstream import options_of
from .command_line import (
    MODEL_BASES,
    TRAINER_BASES,
    Bases,
    CommandLine,
    candidates,
    class_parser,
)
from .parser import CommandParser, name_of
from .trainer import ExactTrainer

FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""


class ClassParser(CommandParser, LightningArgumentParser):
    """The parser of a command; jsonargparse makes one for each class that an option takes."""

    def add_class_arguments(self, theclass: type, *args: object, **kwargs: object) -> list[str]:
        """Changes defaults that do not suit a run.

        Loggers write into the run's folder; a loss returns one number per image.
        """
        added: list[str] = super().add_class_arguments(theclass, *args, **kwargs)
        for option in options_of(self):
            if option.dest == "save_dir" and option.required and issubclass(theclass, Logger):
                option.required = False
                option.default = "."
            if option.dest == "reduction" and issubclass(theclass, nn.Module):
                option.default = "none"
            if isinstance(option.default, Enum):  # which YAML has not
                option.default = option.default.value
        return added


class Command(LightningCLI):
    """Parses the options of a command, and builds its data, model and trainer."""

    module: str
    """The module that is run."""
    description: str
    """One sentence for ``--help``."""
    examples: Sequence[str]
    """Command lines for ``--help``."""
    help_texts: Mapping[str, str] = {}
    """Lightning's options that ``--help`` shows, by their names, and what it says of them."""
    hidden_options: Sequence[str] = ()
    """Options of the data that ``--help`` leaves out, without ``--data.``."""
    build_model: Callable[..., LightningModule]
    """The base class of models, or a function of options that returns a model."""
    data_class: type[LightningDataModule]
    """The base class of data modules."""
    classes: Mapping[str, type] = {}
    """The classes of ``data`` and ``model`` if none is named."""
    default_arguments: Mapping[type, Mapping[str, Any]] = {}
    """Arguments of these classes that differ from their own defaults."""
    defaults: Mapping[str, Any]
    """Defaults of other options."""
    path_classes: ClassVar[Mapping[str, type]]
    """The data modules for ``--data PATH``: ``root`` of a folder, ``file`` of a file, ``hf`` of
    hf:NAME. ``--help`` shows the first one's options."""
    progress_class: type[Callback]
    """Reports progress if no terminal would show a bar."""

    def __init__(self, args: ArgsType = None) -> None:
        program = f"python -m {self.module}"
        examples = ["examples:", *self.examples, "", f"All options: {program} --help-all"]
        self.bases: Bases = {"data": self.data_class, **TRAINER_BASES}
        if isinstance(self.build_model, type):
            self.bases = {"model": self.build_model, **MODEL_BASES, **self.bases}
        super().__init__(
            self.build_model,
            self.data_class,
            save_config_callback=None,
            trainer_class=ExactTrainer,
            seed_everything_default=0,
            parser_class=ClassParser,
            parser_kwargs={
                "prog": program,
                "description": self.description,
                "epilog": "\n  ".join(examples),
            },
            subclass_mode_data=True,
            subclass_mode_model=isinstance(self.build_model, type),
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the command's defaults, and the link from the seed to the data."""
        parser.link_arguments("seed_everything", "data.init_args.seed")
        parser.set_defaults(dict(self.defaults))

    def default_classes(self, line: CommandLine, named: Collection[str]) -> Mapping[str, type]:
        """Returns the classes of ``data`` and ``model`` that are not named."""
        return self.classes

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments."""
        assert isinstance(parser, ClassParser)
        line = CommandLine(sys.argv[1:] if args is None else map(str, args))
        named = line.take_classes(self.bases, self.path_classes)
        classes = {**self.default_classes(line, named), **named}
        helps = {"-h": self.short_help, "--help": self.short_help, "--help-all": self.full_help}
        for word in helps.keys() & {*line.words}:
            sys.stdout.write(helps[word](parser))
            parser.exit()
        self.named_options = line.names | classes.keys()
        for name in line.names & FOLLOWS.keys():
            raise UserError(f"--{name} cannot be given: it follows from {FOLLOWS[name]}")
        specs: dict[str, Any] = {
            key: {
                "class_path": f"{cls.__module__}.{cls.__qualname__}",
                "init_args": dict(self.default_arguments.get(cls, {})),
            }
            for key, cls in classes.items()
        }
        for key in specs.keys() & MODEL_BASES.keys():
            specs["model"]["init_args"][key.removeprefix("model.")] = specs.pop(key)
        parser.set_defaults(specs)
        configs = [f"--config={json.dumps(config, default=str)}" for config in line.configs]
        self.config = parser.parse_args([*configs, *line.flags])
        trainer = self.config.trainer
        if trainer.max_epochs and "trainer.max_epochs" not in self.named_options:
            is_limited = trainer.max_steps != -1 or trainer.max_time
            least = max(trainer.max_epochs, trainer.min_epochs or 1)
            trainer.max_epochs = -1 if is_limited else least  # our default gives way

    def short_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help``: the options that most people need."""
        modules = ", ".join(cls.__name__ for cls in candidates(self.data_class))
        titles = {
            "": "command",
            "trainer": "trainer, the options used most",
            "callbacks": "callbacks; false switches one off",
            "data": textwrap.fill(f"data; --data takes a folder, or {modules}", 100),
            "model": "model; --model takes a class of your own",
        }
        sections: dict[str, list[Action]] = {title: [] for title in titles.values()}
        options = options_of(parser)
        options += options_of(class_parser(self.path_classes["root"], "data"))
        if "model" in self.classes:
            options += options_of(class_parser(self.classes["model"], "model"))
        hidden = {*titles, "model.ckpt_path", *FOLLOWS}
        hidden |= {f"data.{name}" for name in self.hidden_options}
        for option in options:
            name = name_of(option).removeprefix("--")
            group = name.rpartition(".")[0].partition(".")[0]
            text = str(self.help_texts.get(name, option.help))
            is_rare = text.startswith("Advanced:") or name.endswith(".help")
            is_rare |= group == "trainer" and name not in self.help_texts
            # others are links, such as "checkpoint --> model.ckpt_path"
            if group in titles and name not in hidden and not is_rare:
                option.help = text
                sections[titles[group]].append(option)
        return parser.format_sections(sections)

    def full_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help-all``: all options, also of data modules and models."""
        text = LightningArgumentParser.format_help(parser)
        for key in sorted(self.bases.keys() & {"data", "model"}):
            for cls in candidates(self.bases[key]):
                arguments = class_parser(cls, key).format_help().strip()
                text += f"\n--{key} {cls.__name__}: {arguments}\n"
        return text.replace("Advanced: ", "")

    def instantiate_classes(self) -> None:
        """Builds data, model and trainer."""
        self.config_init = self.parser.instantiate(self.config)
        self.datamodule = self.config_init.data
        self.model = self.config_init.model
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer, with lines of progress where no terminal would show a bar."""
        options = self.config_init.trainer
        callbacks = options.callbacks or []
        is_watched = sys.stdout.isatty() and sys.stderr.isatty()
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if options.enable_progress_bar is None and not (is_watched or has_bar):
            options.callbacks = [*callbacks, self.progress_class()]
        return super().instantiate_trainer(**kwargs)

    def say(self, text: str) -> None:
        """Prints a result once, however many processes there are."""
        if self.trainer.is_global_zero:
            print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Prints on standard error, once, what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)
