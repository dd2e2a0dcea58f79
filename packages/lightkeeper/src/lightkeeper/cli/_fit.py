"""Workings of ``fit``: a run's folder and callbacks, training or resuming, and one test."""

import json
import os
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from jsonargparse import Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.cli import LightningArgumentParser

from ..exact._errors import LocalError, NonFiniteError, UserError, listed
from ..exact._files import write_text
from ..exact._last_checkpoint import LastCheckpoint
from ..exact._loggers import begin_anew
from ..exact._non_finite import StopOnNonFinite
from ..images._bookkeeping import Bookkeeping, DescribeCheckpoint
from ..images._checkpoint import (
    ABOUT,
    About,
    DescribedCheckpointIO,
    read_newest,
    require_same_classes,
)
from ..images._checkpoints import (
    BestCheckpoint,
    best_checkpoint,
    better_direction,
    change_of_data,
    fitting,
    measured,
)
from ..images._class_names import require_class_names
from ..images._hardware import best_precision, tune_malloc
from ..images._resuming import Resumable
from ._command import Command
from ._command_line import flat, read_config
from ._entry import run_command
from ._folder import RunFolder, derived_name
from ._loggers import log_settings, loggers_of, place_in_folder
from ._parser import full_name, read_yaml
from ._trainer import require_sound_run

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
    """Callbacks that write at the start of a batch or an epoch, before others log there."""

    run: RunFolder
    _resumed_step = 0

    def prepare_options(self, config: Namespace, earlier: Mapping[str, object]) -> None:
        """Changes options before classes are built; ``earlier`` are those of a resumed run."""

    def show_results(self, metrics: dict[str, Any]) -> None:
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
            default="val/accuracy",
            help="The validation metric that best.ckpt is chosen by.",
        )
        parser.add_argument(
            "--mode",
            type=Literal["min", "max"] | None,
            help="min or max: the best value of this metric; by default the metric's own.",
        )
        for name, cls in {**_OWN, **self.default_callbacks}.items():
            text = str(cls.__doc__).partition("\n")[0]
            parser.add_argument(f"--callbacks.{name}", type=cls | bool, default=True, help=text)
        parser.add_argument(
            "--callbacks.best_checkpoint",
            type=bool,
            default=True,
            help="Keeps best.ckpt, chosen by --monitor; without it, that is the end of training.",
        )
        for name, check in {"class_names": require_class_names, "preprocessing": None}.items():
            target = f"model.init_args.{name}"
            parser.link_arguments(f"data.{name}", target, check, apply_on="instantiate")

    def before_instantiate_classes(self) -> None:
        """Finds the run's folder, and chooses what depends on it and on the machine."""
        config = self.config
        if config.name is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
            raise UserError("--max-restarts needs a --name, by which processes find the run again")
        trainer = config.trainer
        data, model = (config[key].class_path.rpartition(".")[-1] for key in ("data", "model"))
        arch = config.model.init_args.get("arch", model)  # a class of the user's may have none
        name = derived_name(data, arch) if config.name is None else config.name
        root = "runs" if trainer.default_root_dir is None else trainer.default_root_dir
        self.run = RunFolder(root, name)
        self.run.require_unfinished()
        resumed = self.run.resumable()
        self._earlier = read_config(str(self.run.config)) if resumed else {}
        self.prepare_options(config, self._earlier)
        if trainer.precision is None and not trainer.plugins:  # which may be one of precision
            trainer.precision = best_precision(trainer.accelerator)
        # without this folder's paths, so that another run can use it
        self._saved_config = config.clone()
        if resumed and "weights" in config.model.init_args:
            config.model.init_args.weights = None  # the checkpoint has them
        place_in_folder(trainer, self.run.path)
        tune_malloc()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the callbacks and the logger that fill the run's folder."""
        options = self.config_init.trainer
        self.trainer_defaults["callbacks"] = own = self._callbacks()
        keeps_any = any(isinstance(part, Checkpoint) for part in (*own, *(options.callbacks or ())))
        if options.enable_checkpointing is None and not keeps_any:
            options.enable_checkpointing = False  # or Lightning adds a ModelCheckpoint
        users = options.plugins or []
        plugins = users if isinstance(users, list) else [users]
        trainer = super().instantiate_trainer(
            # Lightning looks here for SLURM's checkpoints of this run, too
            default_root_dir=self.run.path,
            logger=loggers_of(options.logger, self.run.path),
            plugins=[DescribedCheckpointIO(self.run.path), *plugins],
            **kwargs,
        )
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        # a Timer ends training at the end of a batch, of which others then log the last metrics
        kinds: tuple[type[Callback], ...] = (DescribeCheckpoint, LastCheckpoint, Timer)
        first = (*kinds, *self.first_callbacks)
        callbacks.sort(key=lambda callback: not isinstance(callback, first))
        self._keeps_last = any(isinstance(callback, LastCheckpoint) for callback in callbacks)
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
        named = {**_OWN, **self.default_callbacks}.items()
        chosen = {name: cls for name, cls in named if options[name]}
        callbacks: list[Callback] = [self._describe]
        for name, cls in chosen.items():
            callbacks.append(options[name] if isinstance(options[name], Callback) else cls())
        callbacks.append(Bookkeeping())
        if options.best_checkpoint:
            monitor = self.config.monitor
            mode = self.config.mode or better_direction(self.model, monitor)
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
        with self.options_in_full():
            self._fit()

    def _fit(self) -> None:
        trainer, model, data = self.trainer, self.model, self.datamodule
        require_sound_run(trainer, data)
        if self.config.trainer.fast_dev_run:  # writes no folder
            trainer.fit(model, datamodule=data)
            trainer.test(model, datamodule=data, verbose=False)
            return
        if trainer.local_rank == 0:  # before the run's folder exists: a failed download leaves none
            data.prepare_data()
        resume = self._open_run()
        try:
            self._train_and_test(resume)
        except BaseException as error:
            self._say_how_to_resume(error)
            raise
        if trainer.is_global_zero:
            self.show_results(self._write_metrics())

    def _open_run(self) -> str | None:
        """Prepares the folder and returns the checkpoint to resume from, if there is one."""
        trainer, model, run = self.trainer, self.model, self.run
        if trainer.is_global_zero:
            run.create()
        if self.datamodule.layout:
            self.note(f"data: {self.datamodule.layout}")
        path, checkpoint = read_newest(run.resumable(), Resumable, self.note)
        changes: list[str] = []
        if trainer.is_global_zero:
            config = self.parser.dump(self._saved_config, skip_unset=False)
            if path is not None:
                options = flat(read_yaml(config, "--config"))
                change = partial(self._change_of_data, checkpoint[ABOUT])
                changes = run.changed_options(self._earlier, options, change)
            write_text(run.config, config)
        if path is None:
            size = sum(parameter.numel() for parameter in model.parameters())
            network = f"{model.arch} ({size:,} parameters, {len(model.class_names)} classes)"
            devices = f"{trainer.world_size} x {trainer.strategy.root_device.type}"
            self.note(f"training {network} on {devices}: {run.path}")
            begin_anew(trainer)
            log_settings(trainer, self._saved_config)
            return None
        about = checkpoint[ABOUT]
        require_same_classes(about["class_names"], path, model.class_names)
        if not self._keeps_last:
            raise UserError(
                f"'{run.path}' resumes only with --callbacks.last_checkpoint; or use another --name"
            )
        if about["processes"] != trainer.world_size:
            changes.append(
                f"the number of processes is {trainer.world_size}, not {about['processes']}: order"
                " and augmentation are exact, BatchNorm's shares of a batch and the last bits of"
                " weights are not"
            )
        self._resumed_step = about["step"]
        step = f"epoch {about['epoch'] + 1} after step {about['step']}"
        news = f"; from here on {listed(changes)}" if changes else ""
        self.note(f"continuing {run.path} in {step}{news}")
        return str(path)

    def _change_of_data(self, about: About) -> str:
        """Says how data from another place differs from that of a checkpoint, as far as it tells."""
        return change_of_data(about, self.datamodule) if "digests" in about else ""

    def _train_and_test(self, resume: str | None) -> None:
        trainer, model, data = self.trainer, self.model, self.datamodule
        with fitting(resume):
            trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
        if _is_out_of_time(trainer):
            self.note(
                f"training ended after step {trainer.global_step}, at the time limit of"
                f" --trainer.max_time or a Timer; {self.run.way_to_train_longer}"
            )
        # names without --name differ between processes
        best = trainer.strategy.broadcast(str(self.run.best))
        kept = best_checkpoint(trainer)
        if kept is None or not kept.best_model_path:
            # as where training ends before an epoch does
            trainer.validate(model, datamodule=data, verbose=False)
            trainer.save_checkpoint(best)
            trainer.strategy.barrier()
        with fitting(best):
            trainer.test(model, datamodule=data, ckpt_path=best, verbose=False, weights_only=True)

    def _say_how_to_resume(self, error: BaseException) -> None:
        """Says how to resume a run that was stopped, or adds it to an error of the machine."""
        # without --name, the first process's name is this one's as soon as they have agreed
        kept = best_checkpoint(self.trainer)
        folder = Path(kept.dirpath).parent if kept and kept.dirpath else self.run.path
        verb = "resume" if self._keeps_last else "start again"
        advice = f"to {verb}, run the same command with --name {shlex.quote(folder.name)}"
        if isinstance(error, SystemExit):  # StoppedError, or Lightning's for Ctrl-C
            # Lightning counts from 0 until it has read the checkpoint
            step = max(self.trainer.global_step, self._resumed_step)
            self.note(f"\nstopped after step {step}; {advice}")
        elif isinstance(error, LocalError | OSError) and not isinstance(error, NonFiniteError):
            error.add_note(advice)  # such as to a full disk or a broken file
        elif isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            error.add_note(advice)  # as torch says of a full disk

    def _write_metrics(self) -> dict[str, Any]:
        best = self._describe.about  # as the tested checkpoint says
        metrics = {
            "checkpoint": str(self.run.best.relative_to(self.run.path)),
            "epoch": best["epoch"] + 1,
            **{name: best[name] for name in ("step", "selection", "class_names", "versions")},
            "val": best["metrics"].get("val"),
            "test": measured(self.trainer, self.model).get("test", {}),
        }
        self.run.write_metrics(metrics)
        return metrics

    def data_flags(self) -> list[str]:
        """Returns the options that no checkpoint remembers: datasets' classes and arguments."""
        data = self.config.data.init_args
        options = {name: data.get(name) for name in self.datamodule.not_remembered}
        chosen = Namespace(options)  # type: ignore[no-untyped-call]
        return [
            f"--{full_name(f'data.{name}')}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in vars(chosen.as_flat()).items()
            if value is not None
        ]


def _is_out_of_time(trainer: Trainer) -> bool:
    """Returns True if a time limit, as of ``--trainer.max_time``, has ended training."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    left = [part.time_remaining() for part in callbacks if isinstance(part, Timer)]
    return trainer.should_stop and any(time is not None and time <= 0 for time in left)
