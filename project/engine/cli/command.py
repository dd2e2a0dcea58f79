"""The LightningCLI of commands that take data, model and trainer, with options in any order."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar, get_args, get_type_hints

from jsonargparse import set_parsing_settings
from jsonargparse.typing import NonNegativeInt
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from ..errors import LINES, UserError, printable
from ..run.progress import note
from ..upstream import options_of
from .class_parser import ClassParser
from .classes import (
    MODEL_BASES,
    TRAINER_BASES,
    Bases,
    accepted,
    candidates,
    class_parser,
    path_of,
)
from .command_line import CommandLine, all_classes, require_known
from .config import flat
from .parser import help_width, option_line, option_lines
from .trainer import ExactTrainer, built_trainer, refused_options

FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""


class Command(LightningCLI):
    """Parses the options of a command, and builds its data, model and trainer."""

    module: str
    """The module that is run."""
    description: str
    """One sentence for ``--help``."""
    examples: Sequence[str]
    """Command lines for ``--help``."""
    trainer_options: Sequence[str]
    """Options of the Trainer that ``--help`` shows, without ``--trainer.``."""
    data_in_help: type[LightningDataModule]
    """The data module whose options ``--help`` shows."""
    model_in_help: type[LightningModule] | None = None
    """The model whose options ``--help`` shows, if any."""
    hidden_options: Sequence[str] = ()
    """Options that ``--help`` leaves out, as the command has no use for them."""
    build_model: Callable[..., LightningModule]
    """The base class of models, or a function of options that returns a model."""
    data_class: type[LightningDataModule]
    """The base class of data modules."""
    classes: Mapping[str, Any]
    """The classes of ``data`` and ``model`` if none is named, by path or with ``init_args``."""
    defaults: Mapping[str, Any]
    """Defaults of other options."""
    path_classes: ClassVar[Mapping[str, type]]
    """The data modules for ``--data PATH``: ``root`` of a folder, ``file`` of a file, ``hf`` of hf:NAME."""
    progress_class: type[Callback]
    """Reports progress if no terminal would show a bar."""
    callback_options: ClassVar[type | None] = None
    """A dataclass of callbacks that have options of their own."""

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

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds ``--seed_everything``; a run's seed is never drawn."""
        text = "Seed of everything that is random."
        parser.add_argument("--seed_everything", type=NonNegativeInt, default=0, help=text)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the command's defaults, and the link from the seed to the data."""
        parser.link_arguments("seed_everything", "data.init_args.seed")
        parser.set_defaults(dict(self.defaults))
        if self.callback_options:  # whose users do not name their class
            classes = [cls for _, cls in self._callback_classes()]
            set_parsing_settings(subclasses_disabled=classes)
            parser.add_class_arguments(self.callback_options, "callbacks")

    def _callback_classes(self) -> list[tuple[str, type]]:
        """Returns the callbacks that have options of their own, with the options' group."""
        hints = get_type_hints(self.callback_options) if self.callback_options else {}
        classes = [(name, cls) for name, hint in hints.items() for cls in get_args(hint)]
        return [(f"callbacks.{name}", cls) for name, cls in classes if issubclass(cls, Callback)]

    def default_classes(self, line: CommandLine) -> Mapping[str, Any]:
        """Returns the classes of ``data`` and ``model`` for a command line that names none."""
        return self.classes

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments."""
        assert isinstance(parser, ClassParser)
        line = CommandLine.read(sys.argv[1:] if args is None else map(str, args))
        if {"-h", "--help"} & {*line.words}:
            sys.stdout.write(parser.format_sections(self.sections(parser, help_width())))
            parser.exit()
        defaults = flat(self.default_classes(line))
        classes = line.take_classes(self.bases, defaults, self.path_classes)
        if "--help-all" in line.words:
            sys.stdout.write(self.full_help(parser))
            parser.exit()
        names = line.names
        for name in names & FOLLOWS.keys():  # a parser would accept and then override it
            raise UserError(f"--{name} cannot be given: it follows from {FOLLOWS[name]}")
        known = parser.known() - {"trainer", "callbacks"}
        used = all_classes(classes, self.bases)
        for key, cls in used.items():
            if not line.values(f"--{key}+"):  # several, each with arguments of its own
                known |= {f"{key}.{name}" for name in accepted(cls)}
        require_known(names, known - FOLLOWS.keys(), used)
        specs: dict[str, Any] = {
            key: {"class_path": path_of(cls), "init_args": {}} for key, cls in classes.items()
        }
        for key in specs.keys() & MODEL_BASES.keys():
            specs["model"]["init_args"][key.removeprefix("model.")] = specs.pop(key)
        parser.set_defaults(specs)
        configs = [
            f"--config={json.dumps(config, default=str)}" for config in (defaults, *line.configs)
        ]
        self.config = parser.parse_args([*configs, *line.flags])
        trainer = self.config.trainer
        if "trainer.max_epochs" not in names and (trainer.max_steps != -1 or trainer.max_time):
            trainer.max_epochs = None  # our default gives way

    def sections(self, parser: ClassParser, width: int) -> dict[str, list[str]]:
        """Returns the lines of the options that most people need, by their heading."""
        hidden = {"--config", "--data", "--model", *self.hidden_options}
        hidden |= {f"--{name}" for name in FOLLOWS}
        lines = option_lines(options_of(parser), width)
        usual = [lines[f"--trainer.{name}"] for name in self.trainer_options]
        callbacks = [name.split(".")[1] for name in lines if name.startswith("--callbacks.")]
        if callbacks:
            switch = f"Switches a callback off: {', '.join(callbacks)}"
            usual.append(option_line("--callbacks.NAME false", switch, width))
        names = [name for name in lines if "." not in name and name not in hidden]
        sections = {
            "command": [lines[name] for name in names],
            "trainer, the options used most": usual,
        }
        others = [cls for cls in candidates(self.data_class) if cls is not self.data_in_help]
        modules = ", ".join(cls.__name__ for cls in others)
        headings = {
            f"data; --data takes a folder, or {modules}": ("data", self.data_in_help),
            "model; --model takes a class of your own": ("model", self.model_in_help),
        }
        for heading, (key, cls) in headings.items():
            options = options_of(class_parser(cls, key)) if cls else []
            usual = [option for option in options if not str(option.help).startswith("Advanced:")]
            lines = option_lines(usual, width)
            sections[heading] = [line for name, line in lines.items() if name not in hidden]
        return sections

    def full_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help-all``: all options, also of data modules and models."""
        text = LightningArgumentParser.format_help(parser)
        keys = self.bases.keys() & {"data", "model"}
        classes = [(key, cls) for key in sorted(keys) for cls in candidates(self.bases[key])]
        for key, cls in [*classes, *self._callback_classes()]:
            text += f"\n--{key} {cls.__name__}: {class_parser(cls, key).format_help().strip()}\n"
        return text.replace("Advanced: ", "")

    def instantiate_classes(self) -> None:
        """Builds data, model and trainer; a constructor's error is raised as it is."""
        errors: list[Exception] = []

        def build(cls: type, *args: Any, **kwargs: Any) -> object:
            is_lightnings = cls.__module__.startswith("lightning.")
            try:
                with refused_options(cls.__name__) if is_lightnings else nullcontext():
                    return cls(*args, **kwargs)
            except Exception as error:
                errors.append(error)
                raise

        problem = None
        try:
            instantiators = [(build, object, True)]
            self.config_init = self.parser.instantiate(self.config, instantiators=instantiators)
        except Exception as error:  # jsonargparse's own, if the type is one of several
            problem = errors[-1] if errors else error
        if problem:  # out here, so that jsonargparse's is not its context
            raise problem
        self.datamodule = self.config_init.data
        self.model = self.config_init.model
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer, with lines of progress where no terminal would show a bar."""
        options = self.config_init.trainer
        callbacks = self.trainer_defaults.get("callbacks", [])
        is_watched = sys.stdout.isatty() and sys.stderr.isatty()
        added = [*callbacks, *(options.callbacks or [])]
        has_bar = any(isinstance(callback, ProgressBar) for callback in added)
        if options.enable_progress_bar is None and not (is_watched or has_bar):
            self.trainer_defaults["callbacks"] = [*callbacks, self.progress_class()]
        return built_trainer(super().instantiate_trainer, **kwargs)

    def say(self, text: str) -> None:
        """Prints a result once, however many processes there are."""
        if self.trainer.is_global_zero:
            print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Prints on standard error, once, what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)
