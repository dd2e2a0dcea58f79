"""The LightningCLI of commands that take data, model and trainer, and their Trainer."""

import json
import os
import sys
import textwrap
from argparse import Action
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt, restricted_number_type
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn

from ..exact._errors import LINES, UserError, note, options_of_library, printable, require
from ..exact._processes import watch_processes
from ..exact._upstream import disable_signal_handling, options_of
from ..images._checkpoints import BestCheckpoint
from ..images._data_module import ImageDataModule
from ._command_line import (
    MODEL_BASES,
    TRAINER_BASES,
    Bases,
    CommandLine,
    Options,
    candidates,
    class_parser,
    flat,
)
from ._parser import CommandParser, name_of

FOLLOWS = {
    "model.class_names": "data.class_names",
    "model.preprocessing": "data.preprocessing",
    "data.seed": "seed_everything",
}
"""Options that follow from others."""

_Seed: Any = restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)])
"""What NumPy takes."""
_TUNER = "use Lightning's Tuner in Python before the run"
_NOT_RESUMABLE: dict[type, str] = {
    StochasticWeightAveraging: "average the weights with EMAWeightAveraging",
    BatchSizeFinder: _TUNER,
    LearningRateFinder: _TUNER,
    BaseFinetuning: (
        "train the head first with --config examples/recipes/lp_ft.yaml, or the head alone with"
        " --model.freeze backbone"
    ),
    ModelPruning: "prune the weights of the finished run with torch.nn.utils.prune",
}
"""Callbacks that continue a run otherwise than it would have gone on, and what to use instead."""


class ExactTrainer(Trainer):
    """Lightning's Trainer, to which a limit of 1 is one batch, and 1.0 is all of them.

    By Lightning's own annotations, both would be all of them. Under torchrun and srun, devices and
    nodes are by default those that these have started.

    Args:
        devices: A number of devices, a list of their numbers, or ``auto``.
        num_nodes: Nodes, by default as many as torchrun or srun has started, else 1.
        accumulate_grad_batches: Batches whose gradients make one step.
        callbacks: Callbacks to add.
        limit_train_batches: Training batches of an epoch: a number, or a share from 0.0 to 1.0.
        limit_val_batches: Validation batches: a number, or a share from 0.0 to 1.0.
        limit_test_batches: Test batches: a number, or a share from 0.0 to 1.0.
        limit_predict_batches: Batches to predict: a number, or a share from 0.0 to 1.0.
        overfit_batches: Batches to train and validate on, the same in each epoch, or their share;
            0.0 is off.
        kwargs: See ``lightning.pytorch.Trainer``.
    """

    def __init__(
        self,
        *,
        devices: list[int] | str | int = "auto",
        num_nodes: PositiveInt | None = None,
        accumulate_grad_batches: PositiveInt = 1,
        callbacks: list[Callback] | None = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        **kwargs: Any,
    ) -> None:
        started = ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "WORLD_SIZE")
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            started = ("SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS")
        tasks, nodes, processes = (int(os.environ.get(name) or 0) for name in started)
        try:
            super().__init__(
                devices=tasks or devices if devices == "auto" else devices,
                num_nodes=num_nodes or nodes or 1,
                accumulate_grad_batches=accumulate_grad_batches,
                callbacks=callbacks,
                limit_train_batches=limit_train_batches,
                limit_val_batches=limit_val_batches,
                limit_test_batches=limit_test_batches,
                limit_predict_batches=limit_predict_batches,
                overfit_batches=overfit_batches,
                **kwargs,
            )
        except (RuntimeError, TypeError, ValueError, MisconfigurationException) as error:
            raise UserError(f"--trainer: {' '.join(str(error).split())}") from error
        advice = ""
        environment = getattr(self.strategy, "cluster_environment", None)
        if isinstance(environment, SLURMEnvironment) and not processes:  # by the script itself
            processes, advice = 1, "; put srun before python in the script of the job"
        wanted = self.num_devices * self.num_nodes
        if processes not in (0, wanted):  # each would train alone, or wait for others
            raise UserError(
                f"--trainer.devices times --trainer.num_nodes is {wanted}, but the launcher started"
                f" {processes}{advice}"
            )
        require_supported(self)
        disable_signal_handling(self)
        watch_processes(self.strategy.launcher)


class ClassParser(CommandParser, LightningArgumentParser):
    """The parser of a command; jsonargparse makes one for each class that an option takes."""

    def instantiate_classes(self, config: Namespace, **options: Any) -> Namespace:
        """Builds what a config names; Lightning calls ``instantiate`` by its older name."""
        construct = partial(build, flat(config.as_dict()))
        built: Namespace = self.instantiate(
            config, instantiators=[(construct, object, True)], **options
        )
        return built

    def validate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> None:
        """Refuses null for an argument that takes none, which jsonargparse lets pass."""
        super().validate(namespace, *args, **kwargs)
        for option in options_of(self):
            if option.default is not None and namespace.get(option.dest, ...) is None:
                null = Namespace({option.dest: None})  # type: ignore[no-untyped-call]
                super().validate(null, skip_unset=False, skip_required=True)

    def add_function_arguments(
        self, *args: Any, linked_targets: object = None, **kwargs: Any
    ) -> list[str]:
        """Leaves out an argument that jsonargparse passes, and takes for classes alone."""
        added: list[str] = super().add_function_arguments(*args, **kwargs)
        return added

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
    default_arguments: Mapping[type, Mapping[str, object]] = {}
    """Arguments of these classes that differ from their own defaults."""
    defaults: Mapping[str, object]
    """Defaults of other options."""
    path_classes: ClassVar[Mapping[str, type]]
    """The data modules for ``--data PATH``: ``root`` of a folder, ``file`` of a file, ``hf`` of
    hf:NAME. ``--help`` shows the first one's options."""

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
        """Adds the seed: a number, where Lightning's may be true, for another one each time."""
        text = "The random seed."
        parser.add_argument("--seed_everything", type=_Seed, default=0, help=text)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links the seed to the data; a subclass adds its options."""
        parser.link_arguments("seed_everything", "data.init_args.seed")

    def default_classes(self, line: CommandLine, named: Mapping[str, type]) -> Mapping[str, type]:
        """Returns the classes of ``data`` and ``model`` that are not named."""
        return self.classes

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments."""
        assert isinstance(parser, ClassParser)
        parser.set_defaults(dict(self.defaults))  # also of options that a subclass has added
        line = CommandLine(sys.argv[1:] if args is None else map(str, args))
        named = line.take_classes(self.bases, self.path_classes)
        classes = {**self.default_classes(line, named), **named}
        helps = {"-h": self.short_help, "--help": self.short_help, "--help-all": self.full_help}
        for word in helps.keys() & {*line.words}:
            sys.stdout.write(helps[word](parser))
            parser.exit()
        named_options = line.names | classes.keys()
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
        if trainer.max_epochs and "trainer.max_epochs" not in named_options:
            is_limited = trainer.max_steps != -1 or trainer.max_time
            least = max(trainer.max_epochs, trainer.min_epochs or 1)
            trainer.max_epochs = -1 if is_limited else least  # our default gives way

    def short_help(self, parser: ClassParser) -> str:
        """Returns the text of ``--help``: the options that most people need."""
        library = __name__.partition(".")[0]
        modules = [cls for cls in candidates(self.data_class) if library not in cls.__module__]
        names = ", ".join(cls.__name__ for cls in modules)
        titles = {
            "": "command",
            "trainer": "trainer, the options used most",
            "callbacks": "callbacks; false switches one off",
            "data": textwrap.fill(
                f"data; --data takes a folder, a table, hf:NAME, or {names}", 100
            ),
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
            option.help = self.help_texts.get(name, option.help)
            is_rare = str(option.help).startswith("Advanced:") or name.endswith(".help")
            if group == "trainer":
                is_rare = name not in self.help_texts
            # other groups are links, such as "checkpoint --> model"
            if group in titles and name not in hidden and not is_rare:
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

    def say(self, text: str) -> None:
        """Prints a result; the first process alone has results."""
        print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Prints on standard error, once, what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)


def build(config: Options, cls: type, /, *args: object, **arguments: object) -> object:
    """Builds a class that a config names; a library's may refuse its arguments."""
    option = next((name for name, value in config.items() if cls.__name__ in str(value)), "config")
    with options_of_library(cls, option, arguments):
        return cls(*args, **arguments)


def require_supported(trainer: Trainer) -> None:
    """Rejects strategies that would measure or save something else than all weights."""
    strategy = trainer.strategy
    name = type(strategy).__name__
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise UserError(
            f"--trainer.strategy {name} does not keep all weights on each device; use ddp"
        )
    if strategy.launcher is not None and not hasattr(strategy.launcher, "cluster_environment"):
        raise UserError(
            f"--trainer.strategy {name}: forked or spawned processes cannot hand their metrics"
            " back; use ddp"
        )


def require_sound_run(trainer: Trainer, data: ImageDataModule) -> None:
    """Refuses data without batches, no test, and callbacks that would spoil a run's checkpoints."""
    data.require_usable(trainer.world_size)
    for option in ("limit_test_batches", "check_val_every_n_epoch", "val_check_interval"):
        # a time between validations is no attribute of that name
        require(getattr(trainer, option, 1) != 0, f"--trainer.{option}", 0, "above 0")
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
    for kind, advice in _NOT_RESUMABLE.items():
        for callback in callbacks:
            if isinstance(callback, kind):
                raise UserError(
                    f"--trainer.callbacks: a run with {type(callback).__name__} could not resume;"
                    f" {advice}"
                )
    folder = Path(trainer.default_root_dir, "checkpoints").resolve()
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and not isinstance(callback, BestCheckpoint):
            names = {callback.filename, callback.save_last and callback.CHECKPOINT_NAME_LAST}
            if Path(callback.dirpath or folder).resolve() == folder:
                for name in names & {"best", "last", "previous"}:
                    raise UserError(
                        f"{type(callback).__name__} would write {name}.ckpt, a checkpoint of the"
                        " run; give it another filename or dirpath"
                    )
