"""Workings of ``fit``: its options, and a run's folder, callbacks and loggers."""

import json
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.cli import LightningArgumentParser

from ..exact._checkpoint_io import first_sound
from ..exact._errors import LocalError, UserError, listed
from ..exact._files import resumable, write_text
from ..exact._last_checkpoint import LastCheckpoint
from ..exact._loggers import begin_anew
from ..exact._non_finite import StopOnNonFinite
from ..exact._upstream import callbacks_of
from ..images._best_checkpoint import BestCheckpoint, default_mode
from ..images._bookkeeping import DescribeCheckpoint
from ..images._checkpoint import (
    ABOUT,
    About,
    DescribedCheckpointIO,
    require_same_classes,
)
from ..images._checkpoints import change_of_data
from ..images._class_names import require_class_names
from ..images._hardware import best_precision, tune_malloc
from ..images._resuming import read_resumable
from ._changes import SameOptions, changed_options, written_options
from ._command import Command
from ._command_line import read_config
from ._entry import run_command
from ._folder import Metrics, RunFolder, derived_name
from ._loggers import log_settings, loggers_of, place_in_folder
from ._parser import full_name
from ._trainer import require_sound_run
from ._training import (
    final_metrics,
    is_of_folder,
    is_of_machine,
    keeps_last,
    record_of,
    require_own_best,
    test_best,
    train,
    way_to_resume,
)

_OWN: dict[str, type[Callback]] = {
    "stop_on_non_finite": StopOnNonFinite,  # before those that write
    "last_checkpoint": LastCheckpoint,
}


class FitCommand(Command):
    """Trains or resumes in a run's folder, ``self.run``; then tests the best checkpoint once.

    A subclass defines what people change: the defaults, the callbacks, and the table at the end.
    """

    default_callbacks: ClassVar[Mapping[str, type[Callback]]] = {}
    """Callbacks of every run, by the option ``--callbacks.NAME``: true, false or their options."""
    first_callbacks: ClassVar[tuple[type[Callback], ...]] = ()
    """Callbacks that write at the start of an epoch, or the end of training: before others log or
    save there."""

    run: RunFolder
    _resumed_step = 0

    def prepare_options(self, config: Namespace, earlier: Mapping[str, object]) -> None:
        """Changes options before classes are built; ``earlier`` are those of a resumed run."""

    def show_results(self, metrics: Metrics) -> None:
        """Prints the final metrics, those of ``metrics.json``."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the run's own options, and links the model to the data."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--name",
            type=str | None,
            help="The run's folder below runs/; by default from data, model and time.",
        )
        parser.add_argument(
            "--monitor",
            type=str,
            default="val/accuracy",
            help="The validation metric that best.ckpt is chosen by.",
        )
        parser.add_argument(
            "--mode",
            type=Literal["min", "max"] | None,
            help="min or max: the best value of this metric; by default its own.",
        )
        for name, cls in {**_OWN, **self.default_callbacks}.items():
            text = (cls.__doc__ or "").partition("\n")[0]
            parser.add_argument(f"--callbacks.{name}", type=cls | bool, default=True, help=text)
        parser.add_argument(
            "--callbacks.best_checkpoint",
            type=bool,
            default=True,
            help="Keeps best.ckpt, chosen by --monitor; if false, it is the last.",
        )
        parser.link_arguments(
            "data.class_names",
            "model.init_args.class_names",
            require_class_names,
            apply_on="instantiate",
        )
        parser.link_arguments(
            "data.preprocessing", "model.init_args.preprocessing", apply_on="instantiate"
        )

    def before_instantiate_classes(self) -> None:
        """Finds the run's folder, and chooses what depends on it and on the machine."""
        config = self.config
        if config.name is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
            raise UserError("--max-restarts needs a --name, by which processes find the run again")
        trainer = config.trainer
        data, model = (config[key].class_path.rpartition(".")[-1] for key in ("data", "model"))
        options = config.model.init_args
        arch = options.get("arch", model)  # a class of the user's may have none
        name = derived_name(data, arch) if config.name is None else config.name
        root = "runs" if trainer.default_root_dir is None else trainer.default_root_dir
        self.run = RunFolder(root, name)
        self.run.require_unfinished()
        resumed = resumable(self.run.path)
        self._earlier = (
            read_config(str(self.run.config)) if resumed and self.run.config.is_file() else {}
        )
        if "weights" in options and options.weights is None:
            options.weights = self._earlier.get("model.weights")
        self.prepare_options(config, self._earlier)
        if trainer.precision is None and not trainer.plugins:  # which may be one of precision
            trainer.precision = best_precision(trainer.accelerator)
        # without this folder's paths, so that another run can use it
        self._saved_config = config.clone()
        if resumed and "weights" in options:
            options.weights = None  # the checkpoint has them
        place_in_folder(trainer, self.run.path)
        tune_malloc()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the callbacks and the logger that fill the run's folder."""
        options = self.config_init.trainer
        self.trainer_defaults["callbacks"] = own = self._callbacks()
        if options.enable_checkpointing is None:  # or Lightning adds a ModelCheckpoint
            parts = (*own, *(options.callbacks or ()))
            options.enable_checkpointing = any(isinstance(part, Checkpoint) for part in parts)
        users = options.plugins or []
        plugins = users if isinstance(users, list) else [users]
        trainer = super().instantiate_trainer(
            # Lightning looks here for SLURM's checkpoints of this run, too
            default_root_dir=self.run.path,
            logger=loggers_of(options.logger, self.run.path),
            plugins=[DescribedCheckpointIO(self.run.path), *plugins],
            **kwargs,
        )
        # a Timer ends training at the end of a batch, of which others then log the last metrics
        first: list[type] = [DescribeCheckpoint, *self.first_callbacks, LastCheckpoint, Timer]
        callbacks_of(trainer).sort(key=lambda x: [not isinstance(x, kind) for kind in first])
        return trainer

    def _callbacks(self) -> list[Callback]:
        options = self.config_init.callbacks
        if self.config.trainer.enable_checkpointing is False and (
            options.best_checkpoint or options.last_checkpoint
        ):
            raise UserError(
                "--trainer.enable_checkpointing false: callbacks keep the checkpoints here; add"
                " --callbacks.best_checkpoint false --callbacks.last_checkpoint false"
            )
        self._describe = DescribeCheckpoint()
        callbacks: list[Callback] = [self._describe]
        for name, cls in {**_OWN, **self.default_callbacks}.items():
            if options[name]:
                callbacks.append(options[name] if isinstance(options[name], Callback) else cls())
        if options.best_checkpoint:
            monitor = self.config.monitor
            mode = self.config.mode or default_mode(self.model, monitor)
            if mode is None:
                raise UserError(
                    f"--monitor {monitor} is no metric of the model's with a known direction; check"
                    " its name, or add --mode min or --mode max"
                )
            callbacks.append(BestCheckpoint(self.run.checkpoints, monitor, mode))
        return callbacks

    @classmethod
    def main(cls) -> NoReturn:
        """Runs the command as a program."""
        run_command(lambda: cls().fit())

    def fit(self) -> None:
        """Trains or resumes; then tests the best checkpoint once and writes the final metrics."""
        started = time.monotonic()
        with self.options_in_full():
            require_sound_run(self.trainer, self.datamodule)
            if self.config.trainer.fast_dev_run:  # writes no folder
                self.trainer.fit(self.model, datamodule=self.datamodule)
                self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
            else:
                self._fit(started)

    def _fit(self, started: float) -> None:
        trainer, model, data = self.trainer, self.model, self.datamodule
        # as Lightning chooses the processes
        if trainer.is_global_zero or (data.prepare_data_per_node and trainer.local_rank == 0):
            # before the run's folder exists: a failed download leaves none
            data.prepare_data()
        resume = self._open_run()
        try:
            if early_end := train(trainer, model, data, resume):
                self.note(f"{early_end}; {self.run.way_to_train_longer}")
            test_best(trainer, model, data, self.run)
            if trainer.is_global_zero:
                # what the tested checkpoint says
                metrics = final_metrics(trainer, model, self.run, self._describe.about)
                if changes := self._describe.changes_of_data:
                    metrics["changes_of_data"] = changes
                self.run.write_metrics(
                    metrics, record_of(trainer, self.command, started, self._resumed_step)
                )
        except BaseException as error:
            self._say_how_to_resume(error)
            raise
        if trainer.is_global_zero:
            self.show_results(metrics)

    def _open_run(self) -> str | None:
        """Prepares the folder and returns the checkpoint to resume from, if there is one."""
        config = self.parser.dump(self._saved_config, skip_unset=False)
        options = written_options(config)
        if self.trainer.is_global_zero:
            self.run.create()
        if self.datamodule.layout:
            self.note(f"data: {self.datamodule.layout}")
        path, checkpoint = first_sound(resumable(self.run.path), read_resumable, self.note)
        save = partial(write_text, self.run.config, config)
        callbacks_of(self.trainer).insert(0, SameOptions(options, self.model.class_names, save))
        if path is None:
            self._begin()
        else:
            require_own_best(self.trainer, self.run.best, checkpoint)
            self._resume(path, checkpoint[ABOUT], options)
        return None if path is None else str(path)

    def _begin(self) -> None:
        """Notes what is trained where, and clears what loggers have of another run."""
        size = sum(parameter.numel() for parameter in self.model.parameters())
        network = f"{self.model.arch} ({size:,} parameters, {len(self.model.class_names)} classes)"
        device = self.trainer.strategy.root_device.type
        self.note(f"training {network} on {self.trainer.world_size} x {device}: {self.run.path}")
        if self.run.best.exists():
            self.note(f"there is no last.ckpt to resume: '{self.run.best}' will be replaced")
        self._describe.note_weights(
            self._saved_config.model.init_args.get("weights"), self.datamodule
        )
        begin_anew(self.trainer)
        log_settings(self.trainer, self._saved_config)

    def _resume(self, path: Path, about: About, options: Mapping[str, object]) -> None:
        """Refuses a checkpoint that this run cannot resume from, and notes what has changed."""
        require_same_classes(about["class_names"], path, self.model.class_names)
        if not keeps_last(self.trainer):
            raise UserError(
                f"'{self.run.path}' resumes only with --callbacks.last_checkpoint; or use another"
                " --name"
            )
        changes: list[str] = []
        if not self._earlier:
            changes.append("options may be others, as config.yaml is lost")
        elif self.trainer.is_global_zero:
            differs = partial(change_of_data, about, self.datamodule)
            changes = changed_options(self.run, self._earlier, options, differs)
        processes = self.trainer.world_size
        if about["processes"] != processes:
            changes.append(
                f"the number of processes is {processes}, not {about['processes']}: order and"
                " augmentation are exact, BatchNorm's shares of a batch, dropout and the last"
                " bits of weights are not"
            )
        self._resumed_step = about["step"]
        step = f"epoch {about['epoch'] + 1} after step {about['step']}"
        news = f"; from here on {listed(changes)}" if changes else ""
        self.note(f"continuing {self.run.path} in {step}{news}")

    def _say_how_to_resume(self, error: BaseException) -> None:
        """Says how to resume a run that was stopped, or adds it to an error of the machine.

        Raises:
            LocalError: The run's folder is gone, which explains the error.
        """
        advice = way_to_resume(self.trainer, self.run, str(self.parser.prog))
        if isinstance(error, SystemExit):  # StoppedError, or Lightning's for Ctrl-C
            # Lightning counts from 0 until it has read the checkpoint
            step = max(self.trainer.global_step, self._resumed_step)
            self.note(f"\nstopped after step {step}; {advice}")
        elif is_of_folder(error, self.run.path):
            raise LocalError(
                f"'{self.run.path}' was moved or removed while the run trained; put it back, or"
                " resume it by its new --name"
            ) from error
        elif is_of_machine(error):
            error.add_note(advice)

    def data_flags(self) -> list[str]:
        """Returns the options that no checkpoint remembers: datasets' classes and arguments."""
        data = self.config.data.init_args
        options = {name: data.get(name) for name in self.datamodule.not_remembered}
        chosen = Namespace(options)  # type: ignore[no-untyped-call]
        plain = partial(json.dumps, ensure_ascii=False)  # YAML knows no pair of \u escapes
        return [
            f"--{full_name(f'data.{name}')}={value if isinstance(value, str) else plain(value)}"
            for name, value in vars(chosen.as_flat()).items()
            if value is not None
        ]
