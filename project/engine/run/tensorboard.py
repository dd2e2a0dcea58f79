"""TensorBoard's files of a run, which resume where a checkpoint was made, and when training writes to them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

from ..upstream import is_accumulating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EVENT_FILES, _BEST = "events.out.tfevents.*", "best/val"


class RunLogger(TensorBoardLogger):
    """TensorBoard's files alone: what Lightning's ``hparams.yaml`` would say, the run's ``config.yaml`` says better."""

    def save(self) -> None:
        """Flushes the event file."""
        self.experiment.flush()

    def lengths(self) -> dict[str, int]:
        """How long each event file is once everything is written, in bytes, by name."""
        self.save()
        return {path.name: path.stat().st_size for path in Path(self.log_dir).glob(_EVENT_FILES)}


def is_logged(trainer: Trainer) -> bool:
    """Whether the batch that ends now has concluded one of the optimizer steps after which training is logged."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector
    stepped = not is_accumulating(trainer)
    return stepped and every > 0 and trainer.global_step % every == 0


def rewind(folder: Path, lengths: dict[str, int]) -> None:
    """Takes away what was logged after a checkpoint, as it will be logged again.

    Args:
        folder: The run's folder.
        lengths: What :meth:`RunLogger.lengths` was when the checkpoint was made.
    """
    for path in folder.glob(_EVENT_FILES):
        if path.name not in lengths:
            path.unlink()
        elif path.stat().st_size > lengths[path.name]:
            with open(path, "r+b") as file:
                file.truncate(lengths[path.name])


def add_figure(trainer: Trainer, tag: str, figure: "Figure", step: int | None = None) -> None:
    """Adds an image to each TensorBoard of the run.

    Args:
        trainer: The run's.
        tag: The image's name.
        figure: What it shows.
        step: The optimizer step that it belongs to; the trainer's by default.
    """
    for logger in tensorboards(trainer):
        logger.experiment.add_figure(tag, figure, global_step=trainer.global_step if step is None else step)


def add_hyperparameters(trainer: Trainer, values: dict[str, Any], metrics: Iterable[str]) -> None:
    """Adds what a run was asked to do to TensorBoard's tab HPARAMS, beside the metrics that its best checkpoint reaches.

    Args:
        trainer: Before its first step.
        values: By name: numbers and text.
        metrics: The names of metrics, without the set that they are measured on.
    """
    final = {f"{where}/{name}": 0 for where in (_BEST, "test") for name in metrics}
    for logger in tensorboards(trainer):
        for summary in hparams(values, final):  # type: ignore[no-untyped-call]
            logger.experiment.file_writer.add_summary(summary)


def add_validation_of_best(trainer: Trainer, metrics: dict[str, Any], step: int) -> None:
    """Adds the validation metrics of the best checkpoint, which the tab HPARAMS shows.

    Args:
        trainer: The run's.
        metrics: What :meth:`project.model.metrics.Metrics.as_dict` returned.
        step: The optimizer step that the checkpoint was made after.
    """
    for logger in tensorboards(trainer):
        for name, value in metrics.items():
            if isinstance(value, float):  # neither a count nor the confusion matrix
                logger.experiment.add_scalar(f"{_BEST}/{name}", value, global_step=step)


def tensorboards(trainer: Trainer) -> list[TensorBoardLogger]:
    """Those that this process writes to."""
    loggers = trainer.loggers if trainer.is_global_zero else []
    return [logger for logger in loggers if isinstance(logger, TensorBoardLogger)]
