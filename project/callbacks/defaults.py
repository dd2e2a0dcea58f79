"""The default callbacks of a run, and the options that configure them or switch them off."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import Callback

from project.callbacks.curves import ImagesPerSecond, LearningRate
from project.callbacks.figures import (
    ConfidentMistakesPlot,
    ConfusionMatrixPlot,
    FirstBatchPlot,
    PlotFiles,
)
from project.callbacks.metrics_csv import MetricsCSV
from project.engine.training.best_checkpoint import BestCheckpoint
from project.engine.training.last_checkpoint import LastCheckpoint
from project.engine.training.non_finite import StopOnNonFinite


@dataclass
class DefaultCallbacks:
    """The default callbacks of a run; each is true, false, which switches it off, or options of its own.

    Args:
        last_checkpoint: Keeps ``last.ckpt``, to resume from, and saves when it is stopped.
        best_checkpoint: Keeps ``best.ckpt``, chosen by ``--monitor``; without it, that is the end
            of training.
        stop_on_non_finite: Stops before a loss or gradient that is not finite reaches the weights.
        learning_rate: Draws the learning rate as a curve.
        images_per_second: Draws the speed of training as a curve, and prints its settings.
        first_batch: Draws the first training batch as the network sees it.
        confusion_matrix: Draws the confusion matrix of each evaluation.
        confident_mistakes: Draws the test images that were classified wrongly with the greatest
            confidence.
        metrics_csv: Writes ``metrics.csv``, a row for each epoch.
        plots: Draws curves, confusion matrix and classes into PNG files at the end.
    """

    last_checkpoint: LastCheckpoint | bool = True
    best_checkpoint: bool = True
    stop_on_non_finite: StopOnNonFinite | bool = True
    learning_rate: bool = True
    images_per_second: bool = True
    first_batch: FirstBatchPlot | bool = True
    confusion_matrix: bool = True
    confident_mistakes: ConfidentMistakesPlot | bool = True
    metrics_csv: bool = True
    plots: bool = True

    def build(self, checkpoints: Path, monitor: str, mode: str) -> list[Callback]:
        """Builds the enabled callbacks; ``monitor`` and its mode choose ``best.ckpt``."""
        builders: list[tuple[Callback | bool, Callable[[], Callback]]] = [
            (self.stop_on_non_finite, StopOnNonFinite),  # before those that write
            (self.last_checkpoint, LastCheckpoint),
            (self.learning_rate, LearningRate),
            (self.images_per_second, ImagesPerSecond),
            (self.first_batch, FirstBatchPlot),
            (self.confusion_matrix, ConfusionMatrixPlot),
            (self.confident_mistakes, ConfidentMistakesPlot),
            (self.metrics_csv, MetricsCSV),
            (self.plots, PlotFiles),
            (self.best_checkpoint, lambda: BestCheckpoint(checkpoints, monitor, mode)),
        ]
        return [
            given if isinstance(given, Callback) else build() for given, build in builders if given
        ]
