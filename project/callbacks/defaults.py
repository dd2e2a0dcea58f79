"""The default callbacks of a run, and the options that configure them or switch them off."""

from collections.abc import Callable
from dataclasses import dataclass

from lightning.pytorch import Callback

from project.callbacks.curves import ImagesPerSecond, LearningRate
from project.callbacks.figures import (
    ConfidentMistakesPlot,
    ConfusionMatrixPlot,
    FirstBatchPlot,
    PlotFiles,
)
from project.callbacks.metrics_csv import MetricsCSV
from project.engine import CallbackOptions


@dataclass
class DefaultCallbacks(CallbackOptions):
    """The callbacks of a run; each is true, false, which switches it off, or has its own options.

    Args:
        learning_rate: Draws the learning rate as a curve.
        images_per_second: Draws the speed of training as a curve, and prints its settings.
        first_batch: Draws the first training batch as the network sees it.
        confusion_matrix: Draws the confusion matrix of each evaluation.
        confident_mistakes: Draws the surest of the wrongly classified test images.
        metrics_csv: Writes ``metrics.csv``, a row for each epoch.
        plots: Draws curves, confusion matrix and classes into PNG files at the end.
    """

    learning_rate: bool = True
    images_per_second: bool = True
    first_batch: FirstBatchPlot | bool = True
    confusion_matrix: bool = True
    confident_mistakes: ConfidentMistakesPlot | bool = True
    metrics_csv: bool = True
    plots: bool = True

    def switches(self) -> list[tuple[Callback | bool, Callable[[], Callback]]]:
        """Returns the option and the class of each callback."""
        return [
            (self.learning_rate, LearningRate),
            (self.images_per_second, ImagesPerSecond),
            (self.first_batch, FirstBatchPlot),
            (self.confusion_matrix, ConfusionMatrixPlot),
            (self.confident_mistakes, ConfidentMistakesPlot),
            (self.metrics_csv, MetricsCSV),
            (self.plots, PlotFiles),
        ]
