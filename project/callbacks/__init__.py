"""Callbacks: curves, plots and progress."""

from project.callbacks.curves import ImagesPerSecond, LearningRate
from project.callbacks.figures import (
    ConfidentMistakesPlot,
    ConfusionMatrixPlot,
    FirstBatchPlot,
    PlotFiles,
)
from project.callbacks.metrics_csv import MetricsCSV
from project.callbacks.progress_lines import ProgressLines

__all__ = [
    "ConfidentMistakesPlot",
    "ConfusionMatrixPlot",
    "FirstBatchPlot",
    "ImagesPerSecond",
    "LearningRate",
    "MetricsCSV",
    "PlotFiles",
    "ProgressLines",
]
