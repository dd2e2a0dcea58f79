"""The LightningCLI that the commands share: defaults, links from data to model, the run folder, and continuing a run."""

import errno
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.strategies import Strategy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from project.callbacks import (
    AboutInCheckpoint,
    ConfidentMistakesPicture,
    ConfusionMatrixPicture,
    FirstBatchPicture,
    ImagesPerSecond,
)
from project.checkpoint import ABOUT, read_checkpoint, require_match
from project.data import ImageDataModule
from project.errors import UserError
from project.model import ImageClassifier
from project.parser import OneLineErrorParser
from project.run_folder import RunFolder, derived_name

DEFAULTS: dict[str, Any] = {
    "data": "project.data.SyntheticFlowersDataModule",
    "trainer.max_epochs": 12,
    "trainer.log_every_n_steps": 10,
    "trainer.default_root_dir": "runs",
}


class RunLogger(TensorBoardLogger):
    """TensorBoard's files alone: what Lightning's ``hparams.yaml`` would say, the run's ``config.yaml`` says better."""

    def save(self) -> None:
        """Flushes the event file."""
        self.experiment.flush()


class ProjectCLI(LightningCLI):
    """Parses, builds data, model and trainer, and trains.

    Attributes:
        run: The run's folder.
    """

    run: RunFolder
    model: ImageClassifier
    datamodule: ImageDataModule

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            ImageClassifier,
            ImageDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            parser_class=OneLineErrorParser,
            parser_kwargs={"prog": "python -m project.fit", "description": "Trains a ResNet, then tests its best checkpoint once."},
            subclass_mode_data=True,
            args=args,
            run=False,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the run's name, our defaults, and what flows from data to model."""
        assert isinstance(parser, OneLineErrorParser)
        parser.bases = {
            "data": ImageDataModule,
            "model.optimizer": Optimizer,
            "model.lr_scheduler": LRScheduler,
            "trainer.callbacks": Callback,
            "trainer.logger": Logger,
            "trainer.strategy": Strategy,
        }
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="The run's folder under runs/; by default it is derived from data, model and time. An unfinished run of that name is continued.",
        )
        parser.link_arguments("data.class_names", "model.class_names", apply_on="instantiate")
        parser.link_arguments("data.preprocessing", "model.preprocessing", apply_on="instantiate")
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=int)
        parser.set_defaults(DEFAULTS)

    def before_instantiate_classes(self) -> None:
        """Finds the run's folder, and refuses a finished one before anything is loaded."""
        data = self.config.data.class_path.rsplit(".", 1)[-1]
        name = self.config.name or derived_name(data, self.config.model.arch, datetime.now())
        self.run = RunFolder(self.config.trainer.default_root_dir, name)
        self.run.require_unfinished()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds the callbacks and the logger that make the run's folder."""
        self.trainer_defaults["callbacks"] = self._callbacks()
        if self.config_init.trainer.logger in (None, True):
            kwargs["logger"] = RunLogger(self.run.path.parent, self.run.name, version="")
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError, RuntimeError) as error:
            raise UserError(f"these --trainer options do not work here: {' '.join(str(error).split())}") from error

    def _callbacks(self) -> list[Callback]:
        keep = {"dirpath": self.run.checkpoints, "enable_version_counter": False}
        curves = [] if self.config_init.trainer.logger is False else [LearningRateMonitor("step"), ImagesPerSecond()]
        return [
            *curves,
            FirstBatchPicture(),
            ConfusionMatrixPicture(),
            ConfidentMistakesPicture(),
            AboutInCheckpoint(),
            ModelCheckpoint(**keep, filename="best", monitor="val/accuracy", mode="max"),
            # without a monitor it always keeps the newest, whatever the figures do
            ModelCheckpoint(**keep, filename="last", save_on_train_epoch_end=True),
        ]

    def fit(self) -> None:
        """Trains, or continues to; then tests the best checkpoint once and writes the final figures."""
        rehearsal = bool(self.trainer.fast_dev_run)
        if not rehearsal:
            self._open_run()
        resume = None if rehearsal else self.run.checkpoint_to_resume
        if resume:
            about = read_checkpoint(resume)[ABOUT]
            model = self.model
            require_match(about, resume, class_names=model.class_names, arch=model.arch, stem=model.stem)
            self._say(f"continuing '{self.run.path}' after epoch {about['epoch']}, step {about['step']}")
        self.trainer.fit(self.model, datamodule=self.datamodule, ckpt_path=resume, weights_only=True)
        best = None if rehearsal else self.run.best
        self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=best, weights_only=True, verbose=False)
        if best and self.trainer.is_global_zero:
            self._conclude()

    def _open_run(self) -> None:
        weights = sum(parameter.numel() * parameter.element_size() for parameter in self.model.parameters())
        self.run.create(needed_bytes=2 * 2 * weights)  # two checkpoints, each with weights and momentum
        if self.trainer.is_global_zero:
            self.parser.save(self.config, self.run.config, skip_none=False, overwrite=True)

    def _conclude(self) -> None:
        best = read_checkpoint(self.run.best)[ABOUT]
        test = self.model.figures["test"]
        metrics = {
            "checkpoint": str(self.run.best.relative_to(self.run.path)),
            "epoch": best["epoch"],
            "step": best["step"],
            "class_names": best["class_names"],
            "val": best["figures"]["val"],
            "test": test.as_dict(),
            "versions": best["versions"],
        }
        self.run.write_metrics(metrics)
        self._say(summary(self.run, metrics))

    def _say(self, text: str) -> None:
        if self.trainer.is_global_zero:
            print(text, flush=True)


def summary(run: RunFolder, metrics: dict[str, Any]) -> str:
    """What a person wants to know at the end of a run."""
    val, test = metrics["val"], metrics["test"]
    rows = [f"  {name:<12}{_percent(val, name):>28}{_percent(test, name):>28}" for name in ("accuracy", "top5") if name in test]
    return "\n".join(
        [
            "",
            f"  {run.path}{'validation':>{40 - len(str(run.path))}}{'test':>28}",
            *rows,
            f"  {'macro F1':<12}{val['f1']:>28.4f}{test['f1']:>28.4f}",
            f"  {'loss':<12}{val['loss']:>28.4f}{test['loss']:>28.4f}",
            "",
            f"  best checkpoint   {run.best}  (epoch {metrics['epoch']})",
            f"  look              tensorboard --logdir {run.path.parent}",
            f"  evaluate again    python -m project.evaluate --ckpt_path {run.best}",
            "  explore           jupyter lab notebooks/explore_checkpoint.ipynb",
            "  your own images   python -m project.fit --data FolderDataModule --data.root FOLDER",
        ]
    )


def _percent(figures: dict[str, Any], name: str) -> str:
    count = figures["correct" if name == "accuracy" else f"{name}_correct"]
    return f"{figures[name]:.2%} ({count}/{figures['total']})"


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line and code 2 where what the user gave is wrong."""
    try:
        yield
    except UserError as error:
        # torch passes an error of a loader worker on with the worker's traceback in front of it
        text = str(error).rsplit("project.errors.UserError: ", 1)[-1].strip()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        text = f"cannot write: {error.strerror}; make room and give the same command again to continue"
    else:
        return
    sys.stderr.write(f"error: {text}\n")
    sys.exit(2)


def quiet_libraries() -> None:
    """Silences what the libraries say of themselves and a user can do nothing about."""
    # Lightning's model summary walks torch's pytrees by a deprecated class
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
