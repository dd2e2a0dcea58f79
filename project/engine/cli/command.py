"""What the commands share: one LightningCLI, and errors of one line."""

import logging
import math
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

from project.callbacks import ProgressLines
from project.data import ImageDataModule
from project.model import ImageClassifier

from ..errors import LINES, LocalError, UserError, end_with_error, printable
from ..loading.workers import WORKER_DIED
from ..run.processes import watch_processes
from ..run.progress import note
from ..upstream import disable_signal_handling
from .explain import TOO_LARGE, explain
from .help import Screen
from .parser import OneLineErrorParser
from .terminal import begin_command
from .trainer import ExactTrainer

# some classes of Lightning have a member of an enumeration as a default, which PyYAML would not write to a config
yaml.add_multi_representer(Enum, lambda dumper, member: dumper.represent_data(member.value), Dumper=yaml.SafeDumper)

TRACEBACK = f"{__name__.partition('.')[0].upper()}_TRACEBACK"  # the variable that shows every error's traceback


class ProjectCLI(LightningCLI):
    """What every command parses and builds alike: the kind of data, the trainer, and errors of one line.

    Args:
        command: The module that is run.
        description: What it does, for ``--help``.
        model_class: Builds the model from options.
        defaults: Defaults of options.
        screen: What ``--help`` shows.
        args: The command line, ``sys.argv`` by default.
    """

    model: ImageClassifier
    datamodule: ImageDataModule

    def __init__(
        self,
        command: str,
        description: str,
        model_class: Callable[..., ImageClassifier],
        defaults: dict[str, Any],
        screen: Screen,
        args: ArgsType,
    ) -> None:
        self.defaults = defaults
        super().__init__(
            model_class,
            ImageDataModule,
            save_config_callback=None,
            trainer_class=ExactTrainer,
            seed_everything_default=0,
            parser_class=OneLineErrorParser,
            parser_kwargs={"prog": f"python -m {command}", "description": description, "screen": screen},
            subclass_mode_data=True,
            subclass_mode_model=isinstance(model_class, type),  # not where it is a function that reads a checkpoint
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the command's defaults, and the link from the seed to the data."""
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=_number)
        parser.set_defaults(self.defaults)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parses the command line, in which nothing that was given is dropped, whatever the order."""
        assert isinstance(parser, OneLineErrorParser)
        assert args is None or isinstance(args, list)
        self.config = parser.parse_command_line(sys.argv[1:] if args is None else args)

    def instantiate_classes(self) -> None:
        """Builds data, model and trainer.

        Raises:
            UserError: One of them does not accept its options. jsonargparse says that of a value that fits no type.
        """
        try:
            super().instantiate_classes()
        except ValueError as error:
            reason: BaseException | None = error
            while reason is not None and not isinstance(reason, UserError):
                reason = reason.__cause__ or reason.__context__
            if reason is None:
                raise
            raise reason from None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Builds the trainer.

        Raises:
            UserError: Lightning does not accept the combination of options, or torch has no such thing on this device.
        """
        self._add_progress_lines()
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ModuleNotFoundError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"these --trainer options do not work here: {' '.join(str(error).split())}") from error
        require_known(trainer.strategy)
        settle_trainer(trainer)
        on_cpu = trainer.strategy.root_device.type == "cpu"
        if on_cpu and trainer.world_size > 1 and self.config.trainer.sync_batchnorm:
            raise UserError(
                "--trainer.sync_batchnorm: torch synchronises BatchNorm on GPUs only; leave it out on a CPU"
            )
        return trainer

    def _add_progress_lines(self) -> None:
        """Has progress written as lines where no terminal would show a bar, unless the user says otherwise."""
        asked, own = self.config_init.trainer, self.trainer_defaults.get("callbacks", [])
        given = asked.callbacks or []
        given = given if isinstance(given, list) else [given]
        has_bar = any(isinstance(callback, ProgressBar) for callback in [*own, *given])
        watched = sys.stdout.isatty() and sys.stderr.isatty()
        if not (watched or has_bar or asked.barebones or asked.enable_progress_bar is False):
            self.trainer_defaults["callbacks"] = [*own, ProgressLines()]

    def say(self, text: str) -> None:
        """Prints a result once, however many processes there are."""
        if self.trainer.is_global_zero:
            print(printable(text, keep=LINES), flush=True)

    def note(self, text: str) -> None:
        """Says once on standard error what the command is doing."""
        if self.trainer.is_global_zero:
            note(text)


def settle_trainer(trainer: Trainer) -> None:
    """Settles what all commands have alike: exact float32 in evaluation, and what happens when a process ends.

    Args:
        trainer: The command's trainer, before it has started processes.

    Raises:
        UserError: A launcher has started another number of processes.
    """
    torch.backends.cudnn.allow_tf32 = False  # evaluation is in float32, which this would round to 10 bits
    _require_every_process(trainer.world_size)
    if not hasattr(trainer, "val_check_interval"):  # where it is a time; EarlyStopping asks for it all the same
        trainer.val_check_interval = math.inf
    disable_signal_handling(trainer)
    watch_processes(trainer.strategy.launcher)


def require_known(strategy: Strategy) -> None:
    """Refuses strategies that shard weights, of which a checkpoint and the test need the whole, and that fork."""
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
        raise UserError(
            f"--trainer.strategy {type(strategy).__name__} does not keep all weights on each device; use ddp"
        )
    if strategy.launcher is not None and not hasattr(strategy.launcher, "cluster_environment"):
        raise UserError("--trainer.strategy: processes that are forked cannot hand their metrics back; use ddp")


def _number(seed: bool | int) -> int:
    """The seed, which Lightning may also be told to leave open; data and training would then have different ones."""
    if isinstance(seed, bool):
        raise ValueError(f"--seed_everything {str(seed).lower()}: give a number")
    return seed


def _require_every_process(world_size: int) -> None:
    """Notices what Lightning does not: processes of a launcher that would each train alone, in one folder."""
    counter = "WORLD_SIZE" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_STEP_NUM_TASKS"
    started = int(os.environ.get(counter) or 1)
    if started not in (1, world_size):
        raise UserError(
            f"{started} processes were started, but --trainer.devices times --trainer.num_nodes is {world_size}"
        )


def _unless_explained(failed: threading.ExceptHookArgs) -> None:
    """Prints what ended a thread, but not TensorBoard's on a full disk, say: the main one meets that too, and says it."""
    if not (isinstance(failed.exc_value, OSError) and explain(failed.exc_value)):
        threading.__excepthook__(failed)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line and code 2 after a user's mistake or an error of the environment.

    The notes of the error follow in the line; a bug keeps its traceback, and ``PROJECT_TRACEBACK=1``, named after the
    package, shows that of every error. Ctrl-C ends the program with code 130, as shells do.
    """
    threading.excepthook = _unless_explained
    begin_command()
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # Python would do so at exit, and a full disk be a traceback
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped\n")
        sys.exit(130)
    except Exception as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise once more for a dead worker
        text = explain(error)
        if text is None or os.environ.get(TRACEBACK):
            raise
        line = "; ".join([text, *getattr(error, "__notes__", [])])
        end_with_error(line, alone=isinstance(error, LocalError | OSError) or text in (WORKER_DIED, TOO_LARGE))


def quiet_libraries() -> None:
    """Silences what the libraries say of themselves and a user can do nothing about."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # of their reports
    # as it is when a run is continued
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
    # as where training ends before the first validation; then it is made up for
    warnings.filterwarnings("ignore", message=".*could not find the monitored key.*")
    # as a frozen backbone should be
    warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
    # the titles of images, where class names are in a script that matplotlib's font lacks
    warnings.filterwarnings(
        "ignore", message=".*Glyph .* missing from.*|Matplotlib currently does not support .* natively"
    )
    # StochasticWeightAveraging replaces the cosine, which is stepped after each step, by a schedule of its own
    warnings.filterwarnings("ignore", message=".*SWA is currently only supported every epoch.*")
    # a training log is the mean since the last one, across the ends of epochs, so short epochs are no trouble
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
    # of the step that the tested weights are of, which is the same on all devices
    warnings.filterwarnings("ignore", message=".*recommended to use `self.log\\('step'.*")
    # images that lie in memory need no loader workers, and the line of settings says how many there are
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    # torch.compile's advice: training computes in bfloat16, and evaluation in float32 on purpose
    warnings.filterwarnings("ignore", message=".*TensorFloat32 tensor cores .* available but not enabled.*")
    # Lightning gathers by a function that torch has renamed
    warnings.filterwarnings("ignore", message=".*all_gather is deprecated.*")
    # Lightning's model summary walks torch's pytrees by a deprecated class
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
