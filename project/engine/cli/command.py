"""The LightningCLI of commands that take data, model and trainer, with options in any order."""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from ..errors import LINES, UserError, printable, require
from ..run.progress import note
from .class_parser import ClassParser, Screen
from .classes import CLASS_OPTIONS, Bases
from .command_line import CommandLine, complete_classes, require_known
from .config import dump, path_of
from .trainer import ExactTrainer, built_trainer, refused_options


class Command(LightningCLI):
    """Parses the options of a command, and builds its data, model and trainer."""

    module: str
    """The module that is run."""
    description: str
    """One sentence for ``--help``, of which ``screen`` has the contents."""
    screen: Screen
    build_model: Callable[..., LightningModule]
    """The base class of models, or a function of options that returns a model."""
    data_class: type[LightningDataModule]
    """The base class of data modules."""
    classes: Mapping[str, Any]
    """The classes of ``data`` and ``model`` if none is named, by path or with ``init_args``."""
    defaults: Mapping[str, Any]
    """Defaults of other options."""
    path_classes: ClassVar[Mapping[str, type]]
    """The data modules for ``--data PATH``: ``root`` of a folder, ``file`` of a file."""
    progress_class: type[Callback]
    """Reports progress if no terminal would show a bar."""

    def __init__(self, args: ArgsType = None) -> None:
        program = f"python -m {self.module}"
        examples = ["examples:", *self.screen.examples, "", f"All options: {program} --help-all"]
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
                "screen": self.screen,
                "epilog": "\n  ".join(examples),
                "bases": self._bases(),
            },
            subclass_mode_data=True,
            subclass_mode_model=isinstance(self.build_model, type),
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def _bases(self) -> Bases:
        model = self.build_model if isinstance(self.build_model, type) else LightningModule
        return {**CLASS_OPTIONS, "data": self.data_class, "model": model}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the command's defaults, and the link from the seed to the data."""
        parser.link_arguments("seed_everything", "data.init_args.seed")
        parser.set_defaults(dict(self.defaults))

    def default_classes(self, line: CommandLine) -> Mapping[str, Any]:
        """Returns the classes of ``data`` and ``model`` for a command line that names none."""
        return self.classes

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments."""
        assert isinstance(parser, ClassParser)
        line = CommandLine.read(sys.argv[1:] if args is None else map(str, args))
        options = line.options(parser.bases, self.default_classes(line), self.path_classes)
        if "--help-all" in line.words:
            sys.stdout.write(parser.format_full_help())
            parser.exit()
        names = line.names(options)
        classes = complete_classes(options, parser.bases)
        if "model" in options and "model" in self.classes:
            # otherwise jsonargparse gives a model of the user's own the base's optimizer
            model = {"class_path": path_of(options["model"]), "init_args": {}}
            parser.set_defaults({"model": model})
        for key in [*classes]:
            if line.values(f"--{key}+"):  # several classes, each with arguments of its own
                del classes[key]
        require_known(names, classes, parser, parser.bases)
        self.config = parser.parse_args([f"--config={dump(options)}", *line.rest])
        trainer, seed = self.config.trainer, self.config.seed_everything
        if "trainer.max_epochs" not in names and (trainer.max_steps != -1 or trainer.max_time):
            trainer.max_epochs = None  # our default gives way
        if trainer.callbacks and not isinstance(trainer.callbacks, list):
            trainer.callbacks = [trainer.callbacks]
        accumulated = trainer.accumulate_grad_batches
        least, most = trainer.min_epochs or 0, trainer.max_epochs or -1
        require(0 <= seed < 2**32, "--seed_everything", seed, f"from 0 to {2**32 - 1}")
        require(accumulated > 0, "--trainer.accumulate_grad_batches", accumulated, "above 0")
        require(
            least <= most or most < 0, "--trainer.min_epochs", least, f"at most max_epochs, {most}"
        )

    def instantiate_classes(self) -> None:
        """Builds data, model and trainer; a constructor's error is raised as it is, not as jsonargparse's."""
        errors: list[Exception] = []

        def build(cls: type, *args: Any, **kwargs: Any) -> Any:
            is_lightnings = cls.__module__.startswith("lightning.")
            try:
                with refused_options(cls.__name__) if is_lightnings else nullcontext():
                    return cls(*args, **kwargs)
            except Exception as error:
                errors.append(error)
                raise

        try:
            instantiators = [(build, object, True)]
            self.config_init = self.parser.instantiate(self.config, instantiators=instantiators)
            errors.clear()
        except (TypeError, ValueError) as error:  # jsonargparse's, if the type is one of several
            errors.insert(0, error)
        if errors:  # out here, so that jsonargparse's is not its context
            raise errors[-1]
        self.datamodule, self.model = self.config_init.data, self.config_init.model
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer, and rejects what is not supported."""
        options = self.config_init.trainer
        callbacks = self.trainer_defaults.get("callbacks", [])
        is_watched = sys.stdout.isatty() and sys.stderr.isatty()
        bars = [
            callback
            for callback in [*callbacks, *(options.callbacks or [])]
            if isinstance(callback, ProgressBar)
        ]
        if options.enable_progress_bar is None and not (is_watched or bars):
            self.trainer_defaults["callbacks"] = [*callbacks, self.progress_class()]
        trainer = built_trainer(super().instantiate_trainer, **kwargs)
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if on_cpu and trainer.world_size > 1 and self.config.trainer.sync_batchnorm:
            raise UserError("--trainer.sync_batchnorm: torch synchronises BatchNorm on GPUs only")
        return trainer

    def say(self, text: str) -> None:
        """Prints a result once, however many processes there are."""
        if self.trainer.is_global_zero:
            print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Prints on standard error, once, what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)
