"""``python -m project.fit``: train a network, then test its best checkpoint once."""

import os
import shlex
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse.typing import PositiveInt
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from lightning.pytorch.cli import ArgsType, LightningArgumentParser
from lightning.pytorch.plugins.precision import Precision

from project.analysis.tables import summary
from project.callbacks import (
    BestCheckpoint,
    DefaultCallbacks,
    DelayedAveraging,
    InPlace,
    LastCheckpoint,
    LogInterval,
    StoppedError,
)
from project.engine.cli.command import ProjectCLI, one_line_errors, quiet_libraries
from project.engine.cli.help import TRAINER, Screen
from project.engine.cli.preflight import require_sound_options, require_sound_run
from project.engine.errors import LocalError, UserError
from project.engine.hardware import best_precision, tune_malloc
from project.engine.run.checkpoint import ABOUT, read_checkpoint, read_newest, selection
from project.engine.run.checkpoint_io import with_atomic_writes
from project.engine.run.folder import RunFolder, derived_name
from project.engine.run.loggers import known_runs, own_first, rewind_all
from project.engine.run.matching import changed_data, require_match, require_same_selection
from project.engine.run.placing import class_of, placed, within
from project.engine.run.tensorboard import add_validation_of_best
from project.engine.training.fitting import require_fitting_weights
from project.engine.training.last_checkpoint import CURVES
from project.engine.training.monitor import chosen_monitor, only_ours, settle_early_stopping
from project.engine.training.unsupported import require_no_finder
from project.model import ImageClassifier
from project.model.pretrained import follow_weights

DEFAULTS: dict[str, Any] = {
    "data": "project.data.SyntheticFlowersDataModule",
    "model": "project.model.ImageClassifier",
    "trainer.max_epochs": 6,
    "trainer.log_every_n_steps": 10,
    "trainer.default_root_dir": "runs",
    "trainer.enable_model_summary": False,
}

SCREEN = Screen(
    TRAINER,
    trains=True,
    examples=(
        "python -m project.fit --data path/to/folder --data.image_size 160 --name mine",
        "python -m project.fit --config configs/cifar10_cpu.yaml --trainer.max_epochs 5",
        "python -m project.fit --model.optimizer AdamW --model.optimizer.lr 0.001 --trainer.devices 2",
    ),
)


class FitCLI(ProjectCLI):
    """Trains in a run's folder.

    Attributes:
        run: The folder.
    """

    run: RunFolder

    def __init__(self, args: ArgsType = None) -> None:
        description = "Trains a network, then tests its best checkpoint once. Without any option: on the built-in data."
        super().__init__("project.fit", description, ImageClassifier, DEFAULTS, SCREEN, args)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the run's name, and what flows from data to model."""
        super().add_arguments_to_parser(parser)
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="The run's folder under runs/, by default derived from data, model and time.",
        )
        parser.add_argument(
            "--threads",
            type=PositiveInt | None,
            default=None,
            help="Threads that compute, for each process on a CPU; by default the cores, shared out among the processes"
            " (torchrun gives one).",
        )
        parser.add_argument(
            "--monitor", type=str, default="val/accuracy", help="The validation metric that best.ckpt is chosen by."
        )
        parser.add_argument(
            "--mode",
            type=Literal["min", "max"] | None,
            default=None,
            help="Whether the least or the greatest of it is best; by default the metric's own: a loss is best at its"
            " least.",
        )
        parser.add_class_arguments(DefaultCallbacks, "callbacks")
        parser.link_arguments("data.class_names", "model.init_args.class_names", apply_on="instantiate")
        parser.link_arguments("data.preprocessing", "model.init_args.preprocessing", apply_on="instantiate")

    def before_instantiate_classes(self) -> None:
        """Finds the run's folder, refuses a finished one before anything is loaded, and settles precision and threads.

        Raises:
            UserError: The run is finished, options do not work, or torchrun would restart it under another name.
        """
        if self.config.name is None and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0:
            raise UserError("--max-restarts needs a --name, by which the restarted processes find the run again")
        data, model = (self.config[key].class_path.rsplit(".", 1)[-1] for key in ("data", "model"))
        arch = self.config.model.init_args.get("arch", model)  # a class of the user's own may have one of its own
        name = self.config.name or derived_name(data, arch, datetime.now())
        self.run = RunFolder(self.config.trainer.default_root_dir, name)
        self.run.require_unfinished()
        trainer = self.config.trainer
        if trainer.callbacks and not isinstance(trainer.callbacks, list):
            trainer.callbacks = [trainer.callbacks]
        require_sound_options(self.config)
        resumed = [path for path in (self.run.last, self.run.previous) if path.exists()]
        follow_weights(self.config, resumed)
        plugins = trainer.plugins if isinstance(trainer.plugins, list) else [trainer.plugins]
        decided = any(issubclass(class_of(plugin) or object, Precision) for plugin in plugins)
        if trainer.precision is None and not decided:
            trainer.precision = best_precision(trainer.accelerator)
        self._saved_config = self.config.clone()  # which another run may take, in a folder of its own
        if resumed and "weights" in self.config.model.init_args:
            self.config.model.init_args.weights = None  # the checkpoint has them
        trainer.logger = placed(trainer.logger, self.run.path, known_runs(resumed) if trainer.logger else {})
        trainer.profiler = within(trainer.profiler, "dirpath", self.run.path)
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
            os.environ["OMP_NUM_THREADS"] = str(self.config.threads)  # or Lightning shares the cores out all the same
        tune_malloc()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the callbacks and the logger that fill the run's folder.

        Raises:
            UserError: There is no such metric as ``--monitor`` says.
        """
        added: list[Callback] = self.config_init.trainer.callbacks or []
        known, closed = self.model.monitors(), only_ours(self.model, *added)
        self.monitor = chosen_monitor(self.config.monitor, self.config.mode, known, closed)
        settle_early_stopping(added, self.config.trainer.callbacks or [], self.monitor)
        own = self.trainer_defaults["callbacks"] = [InPlace(self.run.path), LogInterval(), *self._callbacks()]
        require_no_finder(added)
        if averaging := [callback for callback in added if isinstance(callback, WeightAveraging)]:
            own.append(DelayedAveraging(averaging))
        if not any(isinstance(callback, Checkpoint) for callback in (*own, *added)):
            kwargs["enable_checkpointing"] = False  # or Lightning would add one
        # where SLURM's automatic checkpoints go and are looked for: in one folder, a run would resume from another's
        kwargs["default_root_dir"] = self.run.path
        kwargs["logger"] = own_first(self.config_init.trainer.logger, self.run.path)
        plugins = self.config_init.trainer.plugins or []
        kwargs["plugins"] = with_atomic_writes(plugins if isinstance(plugins, list) else [plugins], self.run.path)
        trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        # first, so that what others log at the start of a batch is not in the curves yet when it saves
        callbacks.sort(key=lambda callback: not isinstance(callback, InPlace | LastCheckpoint))
        self._keeps_last = any(isinstance(callback, LastCheckpoint) for callback in callbacks)
        self._keep_best = next((callback for callback in callbacks if isinstance(callback, BestCheckpoint)), None)
        return trainer

    def _callbacks(self) -> list[Callback]:
        defaults: DefaultCallbacks = self.config_init.callbacks
        if self.config_init.trainer.logger is False:
            defaults = replace(defaults, learning_rate=False, images_per_second=False)
        return defaults.build(self.run.checkpoints, *self.monitor, seed=int(self.config.seed_everything))

    def advice_after_death(self) -> str:
        """The command that resumes the run, or starts it again where it keeps nothing to resume from."""
        best = self._keep_best
        folder = Path(best.dirpath).parent if best and best.dirpath else self.run.path  # the first process's, if agreed
        again = "resume" if self._keeps_last else "start again"
        return f"to {again}, run the same command with --name {shlex.quote(folder.name)}"

    def fit(self) -> None:
        """Trains, or continues to; then tests the best checkpoint once and writes the final metrics."""
        require_sound_run(self.trainer, self.model, self.datamodule, self.monitor)
        if self.config.trainer.fast_dev_run:  # which keeps nothing
            self.trainer.fit(self.model, datamodule=self.datamodule)
            self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
            return
        if self.trainer.local_rank == 0:  # Lightning will too, but then the run has its folder
            self.datamodule.prepare_data()
        try:
            self._train_and_test(self._open_run())
        except BaseException as error:
            discarded = self.trainer.is_global_zero and self.trainer.global_step == 0 and self.run.discard()
            # ours, or Lightning's answer to Ctrl-C before the first step and after the last
            if isinstance(error, SystemExit):
                done = f" after step {self.trainer.global_step}" if isinstance(error, StoppedError) else ""
                again = f"; {self.advice_after_death()}"
                self.note(f"\nstopped{done}{' before the first step' if discarded else again}")
            elif isinstance(error, LocalError | OSError) and not discarded:  # as of a full disk, or a broken file
                error.add_note(self.advice_after_death())
            raise
        if self.trainer.is_global_zero:
            self._conclude()

    def _train_and_test(self, resume: str | None) -> None:
        self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path=resume, weights_only=True)
        for early in self.trainer.early_stopping_callbacks:
            if early.stopping_reason_message:
                reason = early.stopping_reason_message.removesuffix(" Signaling Trainer to stop.")
                self.note(f"stopped early, after epoch {early.stopped_epoch + 1}: {reason}")
        best = self.trainer.strategy.broadcast(str(self.run.best))  # the first process's: names without --name differ
        if not (self._keep_best and self._keep_best.best_model_path):  # as where training ends before an epoch does
            self.trainer.validate(self.model, datamodule=self.datamodule, verbose=False)
            self.trainer.save_checkpoint(best)
            self.trainer.strategy.checkpoint_io.teardown()  # one that writes in the background has written it then
            self.trainer.strategy.barrier()
        self._test(best)

    def _test(self, best: str) -> None:
        """Tests what the file holds.

        Lightning lets callbacks take part where it loads a checkpoint itself, and those that average weights put the raw
        ones back.

        Raises:
            UserError: The weights do not fit the network, as in a file that was changed, or a callback has changed them.
        """
        checkpoint = read_checkpoint(best)
        weights = checkpoint["state_dict"]
        require_fitting_weights(self.model.state_dict(), weights, best)
        self.model.load_state_dict(weights)
        self.model.weights_step = checkpoint["global_step"]
        if "val" in (measured := checkpoint[ABOUT]["metrics"]):  # a model class may measure otherwise
            add_validation_of_best(self.trainer, measured["val"], checkpoint["global_step"])
        self.trainer.test(self.model, datamodule=self.datamodule, verbose=False)
        changed = [
            name for name, value in self.model.state_dict().items() if not torch.equal(value.cpu(), weights[name])
        ]
        if changed:
            raise UserError(
                f"a callback changed the weights before the test ({changed[0]}): these are no metrics of '{best}'; leave"
                f" the callback out and measure it with python -m project.evaluate --ckpt_path {shlex.quote(best)}"
            )

    def _open_run(self) -> str | None:
        """Prepares the folder and finds what to continue from."""
        if self.trainer.is_global_zero:
            weights = sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
            self.run.create(needed_bytes=3 * 2 * weights)  # three checkpoints, each with weights and momentum
            self.parser.save(self._saved_config, self.run.config, skip_unset=False, overwrite=True)
        if costs := self.config_init.callbacks.costs():
            self.note(costs)
        path, checkpoint = read_newest([self.run.last, self.run.previous], self.note)
        if self.trainer.is_global_zero:
            rewind_all(self.trainer, checkpoint.get(CURVES, {}))
        if path is None:
            self.note(f"{self._description()}: {self.run.path}")
            return None
        about, model, own = checkpoint[ABOUT], self.model, type(self.model).__name__
        require_match(about, path, model=own, class_names=model.class_names, arch=model.arch, arch_args=model.arch_args)
        require_same_selection(about, selection(self.trainer))
        if not self._keeps_last:
            raise UserError(f"'{self.run.path}' resumes with --callbacks.last_checkpoint alone; or use another --name")
        changed = changed_data(about, self.datamodule)
        self.note(f"continuing {self.run.path} in epoch {about['epoch'] + 1} after step {about['step']}{changed}")
        return str(path)

    def _description(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        classes = len(self.model.class_names)
        size = f"{parameters / 1e6:.1f} M" if parameters >= 1e5 else f"{parameters:,}"
        model = f"{self.model.arch} ({size} parameters, {classes} classes)"
        devices = f"{self.trainer.world_size} x {self.trainer.strategy.root_device.type}"
        return f"training {model} on {devices}"

    def _conclude(self) -> None:
        best = read_checkpoint(self.run.best)[ABOUT]
        metrics = {
            "checkpoint": str(self.run.best.relative_to(self.run.path)),
            "epoch": best["epoch"],
            "step": best["step"],
            "selection": best["selection"],
            "class_names": best["class_names"],
            "val": best["metrics"]["val"],
            "test": self.model.results["test"].as_dict(),
            "versions": best["versions"],
        }
        self.run.write_metrics(metrics)
        self.say(summary(self.run, metrics))


def main() -> None:
    """Runs the command."""
    quiet_libraries()
    with one_line_errors():
        FitCLI().fit()


if __name__ == "__main__":
    main()
