"""A LightningCLI for every command: options in any order, output that lasts, errors of one line."""

import gc
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from typing import Any, ClassVar, TextIO

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from ..errors import LINES, LocalError, UserError, end_with_error, printable, require
from ..loading.workers import WORKER_DIED
from ..run.progress import note
from .classes import CLASS_OPTIONS, find_class, path_of
from .command_line import arrange, values_of
from .explain import TOO_LARGE, TRACEBACK, explain
from .parser import OneLineErrorParser, Screen
from .trainer import ExactTrainer, built_trainer, refused_options

# some classes of Lightning have a member of an enumeration as a default, which PyYAML would not write to a config
yaml.add_multi_representer(
    Enum, lambda dumper, member: dumper.represent_data(member.value), Dumper=yaml.SafeDumper
)


class Command(LightningCLI):
    """Parses the options of a command, and builds its data, model and trainer."""

    module: str
    """The module that is run."""
    description: str
    """One sentence for ``--help``, of which ``screen`` has the contents."""
    screen: Screen
    build_model: Callable[..., LightningModule]
    """The base class of models, or a function of options that returns a model."""
    classes: dict[str, Any]
    """The classes of ``data`` and ``model`` where nobody names one, by path or with ``init_args``."""
    defaults: dict[str, Any]
    """Defaults of other options."""
    path_classes: ClassVar[dict[str, type]]
    """The data modules for ``--data PATH``, by the argument that takes the path: ``root`` of a folder, ``file`` of a file."""
    progress_class: type[Callback]
    """Reports progress where no terminal would show a bar."""

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            self.build_model,
            CLASS_OPTIONS["data"],
            save_config_callback=None,
            trainer_class=ExactTrainer,
            seed_everything_default=0,
            parser_class=OneLineErrorParser,
            parser_kwargs={
                "prog": f"python -m {self.module}",
                "description": self.description,
                "screen": self.screen,
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
        parser.set_defaults(self.defaults)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses a command line in whatever order it names configs, classes and arguments; see ``arrange``."""
        assert isinstance(parser, OneLineErrorParser)
        given = sys.argv[1:] if args is None else list(map(str, args))
        if "--help-all" in given:
            for key in ("data", "model"):
                for name in values_of(f"--{key}", given):
                    find_class(key, name)  # imports it, so that it is shown
            sys.stdout.write(parser.format_full_help())
            parser.exit()
        arranged, options = arrange(given, self.classes, self.path_classes)
        if (
            "model" in self.classes
        ):  # otherwise jsonargparse gives a model of the user's own the base's optimizer
            parser.set_defaults(
                {"model": {"class_path": path_of(options["model"]), "init_args": {}}}
            )
        OneLineErrorParser.command = parser
        self.config = parser.parse_args(arranged)
        OneLineErrorParser.command = None
        trainer, seed = self.config.trainer, self.config.seed_everything
        accumulated = trainer.accumulate_grad_batches
        if trainer.callbacks and not isinstance(trainer.callbacks, list):
            trainer.callbacks = [trainer.callbacks]
        require(0 <= seed < 2**32, "--seed_everything", seed, f"from 0 to {2**32 - 1}")
        require(accumulated > 0, "--trainer.accumulate_grad_batches", accumulated, "above 0")

    def instantiate_classes(self) -> None:
        """Builds data, model and trainer; an error of a constructor is raised as it is, not as jsonargparse's."""
        errors: list[Exception] = []

        def build(cls: type, *args: Any, **kwargs: Any) -> Any:
            try:
                with (
                    refused_options(cls.__name__)
                    if cls.__module__.startswith("lightning.")
                    else nullcontext()
                ):
                    return cls(*args, **kwargs)
            except Exception as error:
                errors.append(error)
                raise

        try:
            self.config_init = self.parser.instantiate(
                self.config, instantiators=[(build, object, True)]
            )
            errors.clear()
        except (TypeError, ValueError) as error:  # jsonargparse's, if the type is one of several
            errors.insert(0, error)
        if errors:  # out here, so that jsonargparse's is not its context
            raise errors[-1]
        self.datamodule, self.model = self.config_init.data, self.config_init.model
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer, and refuses what is not supported."""
        options, own = self.config_init.trainer, self.trainer_defaults.get("callbacks", [])
        has_bar = any(isinstance(one, ProgressBar) for one in [*own, *(options.callbacks or [])])
        watched = sys.stdout.isatty() and sys.stderr.isatty()
        if not (watched or has_bar or options.enable_progress_bar is False):
            self.trainer_defaults["callbacks"] = [*own, self.progress_class()]
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


class LastingFile(io.FileIO):
    """A file descriptor that accepts output even if nobody reads it any more: training does not end with ``| head``.

    Messages on a full disk are lost; a result that cannot be written raises one error, and its rest is discarded.
    """

    may_be_lost = False

    def write(self, data: Any, /) -> int:
        """Writes or discards the data; raises OSError if a result that somebody waits for cannot be written."""
        try:
            return super().write(data)
        except OSError as error:
            if isinstance(error, BrokenPipeError) or self.may_be_lost:
                return len(memoryview(data))
            self.may_be_lost = True
            raise


def lasting(stream: Any, messages: bool = False) -> TextIO:
    """Wraps standard output or standard error so that no closed pipe and no character outside its encoding breaks it."""
    file = LastingFile(stream.fileno(), "wb", closefd=False)
    file.may_be_lost, flushed = messages, messages or stream.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(file), stream.encoding, "backslashreplace", line_buffering=flushed
    )


def _unless_explained(failed: threading.ExceptHookArgs) -> None:
    """Prints what ended a thread, but not a full disk in TensorBoard's: the main thread meets that too, and says it."""
    if not (isinstance(failed.exc_value, OSError) and explain(failed.exc_value)):
        threading.__excepthook__(failed)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Runs a command: ends with one line and code 2 for a mistake or a full disk; a bug keeps its traceback."""
    quiet_libraries()
    threading.excepthook = _unless_explained
    gc.freeze()  # what was imported stays, so that the collector need not look at it again
    gc.enable()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed, as by a daemon: a checkpoint could take its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # takes the lowest number that is free, and lasts
    if (
        sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__
    ):  # unless a test or a notebook has replaced them
        sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr, messages=True)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # Python would do so at exit, and a full disk be a traceback
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        sys.exit(130)
    except Exception as error:
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # torch's handler would raise once more for a dead worker
        text = explain(error)
        if text is None or os.environ.get(TRACEBACK, "0") not in ("", "0"):
            raise
        line = "; ".join([text, *getattr(error, "__notes__", [])])
        end_with_error(
            line, alone=isinstance(error, LocalError | OSError) or text in (WORKER_DIED, TOO_LARGE)
        )


_SILENCED = (
    ".*Checkpoint directory .* exists and is not empty.*",  # as it is when a run is continued
    ".*could not find the monitored key.*",  # where training ends before the first validation, which is made up for
    ".*in eval mode at the start of training.*",  # as a frozen backbone should be
    ".*Glyph .* missing from.*|Matplotlib currently does not support .* natively",  # class names in other scripts
    ".*SWA is currently only supported every epoch.*",  # it replaces the cosine, which is stepped after each step
    ".*smaller than the logging interval.*",  # a training log is the mean since the last one, across epochs
    ".*recommended to use `self.log\\('step'.*",  # the step of the tested weights, the same on all devices
    ".*does not have many workers.*",  # images in memory need none, and the line of settings says how many there are
    ".*TensorFloat32 tensor cores .* available but not enabled.*",  # evaluation computes in float32 on purpose
    ".*`srun` command is available on your system but is not used.*",  # one process may be what is wanted
    ".*all_gather is deprecated.*",  # Lightning gathers by a function that torch has renamed
    ".*LeafSpec.*",  # Lightning's model summary walks torch's pytrees by a deprecated class
)


def quiet_libraries() -> None:
    """Silences what libraries say of themselves and a user can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # of their reports
    for message in _SILENCED:
        warnings.filterwarnings("ignore", message=message)
