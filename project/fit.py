"""``python -m project.fit``: train a network, then test its best checkpoint once."""

import gc
import os
import shlex
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":
    gc.disable()  # a quarter faster imports, which create no garbage; one_line_errors() enables it again

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, Timer
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.plugins.precision import Precision

import project.data as data_modules
from project.analysis.tables import summary
from project.callbacks import DefaultCallbacks, MetricsCSV
from project.cli import ProjectCLI
from project.data import (
    CIFAR10DataModule,
    FlowersDataModule,
    FolderDataModule,
    SyntheticFlowersDataModule,
)
from project.engine.cli.class_parser import Screen
from project.engine.cli.entry import one_line_errors
from project.engine.cli.trainer import require_sound_run
from project.engine.errors import LocalError, NonFiniteError, UserError
from project.engine.hardware import best_precision, tune_malloc
from project.engine.run.checkpoint import (
    ABOUT,
    read_checkpoint,
    read_newest,
    with_atomic_writes,
)
from project.engine.run.folder import RunFolder, derived_name
from project.engine.run.loggers import class_of, loggers_of, place_in_folder, rewind
from project.engine.training.best_checkpoint import (
    BestCheckpoint,
    chosen_monitor,
    evaluate_best,
    selection,
    watch_validation,
)
from project.engine.training.fitting import changed_data, changed_processes, require_match
from project.engine.training.last_checkpoint import CURVES, LastCheckpoint, StoppedError
from project.model import ImageClassifier
from project.model.networks import is_path
from project.model.pretrained import follow_weights

BUILT_IN = (SyntheticFlowersDataModule, FlowersDataModule, CIFAR10DataModule)


class FitCLI(ProjectCLI):
    """Trains in a run's folder, ``self.run``."""

    run: RunFolder

    module = "project.fit"
    description = "Trains a network, then tests its best checkpoint once. Without any option: on the built-in data."
    build_model = ImageClassifier
    classes = {
        "data": "project.data.SyntheticFlowersDataModule",
        "model": "project.model.ImageClassifier",
    }
    defaults = {
        "trainer.max_epochs": 4,
        "trainer.log_every_n_steps": 10,
        "trainer.default_root_dir": "runs",
        "trainer.enable_model_summary": False,
    }
    screen = Screen(
        trainer=(
            *(
                "accelerator",
                "devices",
                "num_nodes",
                "strategy",
                "precision",
                "max_epochs",
                "accumulate_grad_batches",
            ),
            *("gradient_clip_val", "callbacks", "fast_dev_run"),
        ),
        data=FolderDataModule,
        model=ImageClassifier,
        examples=(
            "python -m project.fit --data path/to/folder --data.image_size 160 --name mine",
            "python -m project.fit --config configs/cifar10_resnet9.yaml --trainer.max_epochs 5",
            "python -m project.fit --model.optimizer AdamW --model.optimizer.lr 0.001 --trainer.devices 2",
        ),
    )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the run's own options, and links the model to the data."""
        super().add_arguments_to_parser(parser)
        name = "The run's folder under runs/, by default derived from data, model and time."
        monitor = "The validation metric that best.ckpt is chosen by."
        mode = "min or max: the best value of this metric; by default the metric's own: min for a loss."
        parser.add_argument("--name", type=str | None, help=name)
        parser.add_argument("--monitor", default="val/accuracy", help=monitor)
        parser.add_argument("--mode", type=Literal["min", "max"] | None, help=mode)
        parser.add_class_arguments(DefaultCallbacks, "callbacks")
        parser.link_arguments(
            "data.class_names", "model.init_args.class_names", apply_on="instantiate"
        )
        parser.link_arguments(
            "data.preprocessing", "model.init_args.preprocessing", apply_on="instantiate"
        )

    def before_instantiate_classes(self) -> None:
        """Finds the run's folder, and chooses what depends on it and on the machine."""
        if self.config.name is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
            raise UserError(
                "--max-restarts needs a --name, by which the restarted processes find the run again"
            )
        trainer = self.config.trainer
        data, model = (self.config[key].class_path.rsplit(".", 1)[-1] for key in ("data", "model"))
        arch = self.config.model.init_args.get(
            "arch", model
        )  # a class of the user's own may have one of its own
        self.run = RunFolder(
            trainer.default_root_dir or "runs", self.config.name or derived_name(data, arch)
        )
        self.run.require_unfinished()
        resumed = self.run.resumable()
        follow_weights(self.config, resumed)
        plugins = trainer.plugins if isinstance(trainer.plugins, list) else [trainer.plugins]
        if trainer.precision is None and not any(
            issubclass(class_of(one) or object, Precision) for one in plugins
        ):
            trainer.precision = best_precision(trainer.accelerator)
        self._saved_config = (
            self.config.clone()
        )  # without this folder's paths, so that another run can use it
        if resumed and "weights" in self.config.model.init_args:
            self.config.model.init_args.weights = None  # the checkpoint has them
        place_in_folder(trainer, self.run.path)
        tune_malloc()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the callbacks and the logger that fill the run's folder."""
        added: list[Callback] = self.config_init.trainer.callbacks or []
        self.monitor = chosen_monitor(self.config.monitor, self.config.mode, self.model.monitors())
        watch_validation(added, self.config.trainer.callbacks or [], self.monitor)
        own = self.trainer_defaults["callbacks"] = self._callbacks()
        if not any(isinstance(callback, Checkpoint) for callback in (*own, *added)):
            kwargs["enable_checkpointing"] = False  # otherwise Lightning adds a ModelCheckpoint
        kwargs["default_root_dir"] = (
            self.run.path
        )  # Lightning looks here for SLURM's checkpoints of this run, too
        kwargs["logger"] = loggers_of(self.config_init.trainer.logger, self.run.path)
        kwargs["plugins"] = with_atomic_writes(self.config_init.trainer.plugins, self.run.path)
        trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        # these come first: they save at the start of a batch or an epoch, before other callbacks log anything there,
        # or end training at the end of a batch, of which others then log the last metrics
        first = LastCheckpoint | MetricsCSV | Timer
        callbacks.sort(key=lambda callback: not isinstance(callback, first))
        self._keeps_last = any(isinstance(callback, LastCheckpoint) for callback in callbacks)
        self._keep_best = next(
            (callback for callback in callbacks if isinstance(callback, BestCheckpoint)), None
        )
        return trainer

    def _callbacks(self) -> list[Callback]:
        defaults: DefaultCallbacks = self.config_init.callbacks
        return defaults.build(self.run.checkpoints, *self.monitor)

    def fit(self) -> None:
        """Trains, or continues to; then tests the best checkpoint once and writes the final metrics."""
        require_sound_run(self.trainer, self.datamodule, self.model.monitors(), self.monitor)
        if self.config.trainer.fast_dev_run:  # writes no folder
            self.trainer.fit(self.model, datamodule=self.datamodule)
            self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
            return
        if (
            self.trainer.local_rank == 0
        ):  # before the run's folder exists, so that a failed download leaves none
            self.datamodule.prepare_data()
        try:
            self._train_and_test(self._open_run())
        except BaseException as error:
            self._say_how_to_resume(error)
            raise
        if self.trainer.is_global_zero:
            self._conclude()

    def _say_how_to_resume(self, error: BaseException) -> None:
        """Says how to resume a run that was stopped, or adds it to an error of the machine; removes an empty folder."""
        step, best = self.trainer.global_step, self._keep_best
        discarded = self.trainer.is_global_zero and step == 0 and self.run.discard()
        # names without --name differ between processes; this one is the first process's as soon as they have agreed
        folder = Path(best.dirpath).parent if best and best.dirpath else self.run.path
        verb = "resume" if self._keeps_last else "start again"
        advice = f"to {verb}, run the same command with --name {shlex.quote(folder.name)}"
        if isinstance(error, SystemExit):  # StoppedError, or Lightning's for Ctrl-C
            done = f" after step {step}" if isinstance(error, StoppedError) else ""
            self.note(f"\nstopped{done}{' before the first step' if discarded else f'; {advice}'}")
        elif isinstance(error, LocalError | OSError) and not (
            discarded or isinstance(error, NonFiniteError)
        ):
            error.add_note(advice)  # such as to a full disk or a broken file

    def _train_and_test(self, resume: str | None) -> None:
        trainer, model, data = self.trainer, self.model, self.datamodule
        trainer.fit(model, datamodule=data, ckpt_path=resume, weights_only=True)
        if trainer.global_step == 0:
            raise UserError(
                "training ended before its first step; see --trainer.max_epochs, max_steps and max_time"
            )
        for early in trainer.early_stopping_callbacks:
            if early.stopping_reason_message:
                self.note(
                    f"stopped early, after epoch {early.stopped_epoch + 1}: {early.stopping_reason_message}"
                )
        best = trainer.strategy.broadcast(
            str(self.run.best)
        )  # names without --name differ between processes
        if not (
            self._keep_best and self._keep_best.best_model_path
        ):  # as where training ends before an epoch does
            trainer.validate(model, datamodule=data, verbose=False)
            trainer.save_checkpoint(best)
            trainer.strategy.checkpoint_io.teardown()  # one that writes in the background has written it then
            trainer.strategy.barrier()
        evaluate_best(trainer, model, data, best)

    def _open_run(self) -> str | None:
        """Prepares the folder and returns the checkpoint to resume from, if there is one."""
        trainer, model, run = self.trainer, self.model, self.run
        size = sum(parameter.numel() for parameter in model.parameters())
        if trainer.is_global_zero:
            run.create()
            self.parser.save(self._saved_config, run.config, skip_unset=False, overwrite=True)
        path, checkpoint = read_newest(run.resumable(), self.note)
        if trainer.is_global_zero:
            rewind(run.path, checkpoint.get(CURVES, {}))
        if path is None:
            network = f"{model.arch} ({size:,} parameters, {len(model.class_names)} classes)"
            self.note(
                f"training {network} on {trainer.world_size} x {trainer.strategy.root_device.type}: {run.path}"
            )
            return None
        about = checkpoint[ABOUT]
        require_match(about, path, model, selection(trainer))
        if not self._keeps_last:
            raise UserError(
                f"'{run.path}' resumes with --callbacks.last_checkpoint alone; or use another --name"
            )
        place = f"epoch {about['epoch'] + 1} after step {about['step']}"
        changes = changed_data(about, self.datamodule) + changed_processes(
            about, trainer.world_size
        )
        self.note(f"continuing {run.path} in {place}{changes}")
        return str(path)

    def _conclude(self) -> None:
        best = read_checkpoint(self.run.best)[ABOUT]
        metrics = {
            "checkpoint": str(self.run.best.relative_to(self.run.path)),
            "epoch": best["epoch"] + 1,
            **{name: best[name] for name in ("step", "selection", "class_names", "versions")},
            "val": best["metrics"].get("val"),
            "test": self.model.results["test"],
        }
        self.run.write_metrics(metrics)
        known = [ImageClassifier, *vars(data_modules).values()]
        own = [
            type(one).__module__ for one in (self.model, self.datamodule) if type(one) not in known
        ]
        own += [self.model.arch.rpartition(".")[0]] if is_path(self.model.arch) else []
        self.say(summary(self.run, metrics, type(self.datamodule) not in BUILT_IN, sorted({*own})))


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        FitCLI().fit()


if __name__ == "__main__":
    main()
