"""The LightningCLI of commands that take data, model and trainer, with options in any order."""

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from ..errors import LINES, printable
from ..run.progress import note
from ..upstream import options_of
from .classes import (
    MODEL_BASES,
    TRAINER_BASES,
    Bases,
    ClassParser,
    candidates,
    class_parser,
    path_of,
)
from .command_line import FOLLOWS, CommandLine, require_known
from .parser import name_of
from .trainer import ExactTrainer, built_trainer, refused_options


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

    def default_classes(self, line: CommandLine) -> Mapping[str, type]:
        """Returns the classes of ``data`` and ``model`` if none is named."""
        return self.classes

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments."""
        assert isinstance(parser, ClassParser)
        line = CommandLine(sys.argv[1:] if args is None else map(str, args))
        classes = {**self.default_classes(line)}
        classes |= line.take_classes(self.bases, self.path_classes)
        helps = {"-h": self.short_help, "--help": self.short_help, "--help-all": self.full_help}
        for word in helps.keys() & {*line.words}:
            sys.stdout.write(helps[word](parser))
            parser.exit()
        specs: dict[str, Any] = {
            key: {
                "class_path": path_of(cls),
                "init_args": dict(self.default_arguments.get(cls, {})),
            }
            for key, cls in classes.items()
        }
        for key in specs.keys() & MODEL_BASES.keys():
            specs["model"]["init_args"][key.removeprefix("model.")] = specs.pop(key)
        parser.set_defaults(specs)
        self.named_options = line.names | classes.keys()
        require_known(self.named_options, parser, classes)
        configs = [f"--config={json.dumps(config, default=str)}" for config in line.configs]
        self.config = parser.parse_args([*configs, *line.flags])
        trainer = self.config.trainer
        if trainer.callbacks and not isinstance(trainer.callbacks, list):
            trainer.callbacks = [trainer.callbacks]
        if trainer.max_epochs and "trainer.max_epochs" not in self.named_options:
            is_limited = trainer.max_steps != -1 or trainer.max_time
            least = max(trainer.max_epochs, trainer.min_epochs or 1)
            trainer.max_epochs = -1 if is_limited else least  # our default gives way

    def short_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help``: the options that most people need."""
        options = options_of(parser)
        shown = {"data": self.path_classes["root"], "model": self.classes.get("model")}
        for key, cls in shown.items():
            options += options_of(class_parser(cls, key)) if cls else []
        usual = {
            name_of(option).removeprefix("--"): option
            for option in options
            if not str(option.help).startswith("Advanced:")
        }
        for name, text in self.help_texts.items():
            usual[name].help = text
        groups = ("config", "print_config", "trainer", "callbacks", "data", "model")
        hidden = {*groups, "model.ckpt_path", *FOLLOWS}
        hidden |= {f"data.{name}" for name in self.hidden_options}
        names = [name for name in usual if name not in hidden and not name.endswith("help")]
        modules = ", ".join(cls.__name__ for cls in candidates(self.data_class))
        data = textwrap.fill(f"data; --data takes a folder, or {modules}", 100)
        sections = {
            "command": [name for name in names if "." not in name],
            "trainer, the options used most": _of_group("trainer", self.help_texts),
            "callbacks; false switches one off": _of_group("callbacks", names),
            data: _of_group("data", names),
            "model; --model takes a class of your own": _of_group("model", names),
        }
        return parser.format_sections(
            {title: [usual[name] for name in names] for title, names in sections.items()}
        )

    def full_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help-all``: all options, also of data modules and models."""
        text = LightningArgumentParser.format_help(parser)
        for key in sorted(self.bases.keys() & {"data", "model"}):
            for cls in candidates(self.bases[key]):
                arguments = class_parser(cls, key).format_help().strip()
                text += f"\n--{key} {cls.__name__}: {arguments}\n"
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
        callbacks = options.callbacks or []
        is_watched = sys.stdout.isatty() and sys.stderr.isatty()
        has_bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        if options.enable_progress_bar is None and not (is_watched or has_bar):
            options.callbacks = [*callbacks, self.progress_class()]
        return built_trainer(super().instantiate_trainer, **kwargs)

    def say(self, text: str) -> None:
        """Prints a result once, however many processes there are."""
        if self.trainer.is_global_zero:
            print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Prints on standard error, once, what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)


def _of_group(group: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{group}.")]
