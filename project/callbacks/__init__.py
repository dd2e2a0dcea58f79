"""Callbacks: what happens during a run beside training."""

from project.callbacks.cached_features import CachedFeatures
from project.callbacks.curves import ImagesPerSecond, LearningRate, SpeedSettings
from project.callbacks.defaults import DefaultCallbacks
from project.callbacks.figures import ConfidentMistakesPlot, ConfusionMatrixPlot, FirstBatchPlot, PlotFiles
from project.callbacks.freeze_parameters import FreezeParameters
from project.callbacks.metrics_csv import MetricsCSV
from project.callbacks.progress_lines import ProgressLines
from project.callbacks.progressive_resizing import ProgressiveResizing
from project.engine.training.best_checkpoint import BestCheckpoint
from project.engine.training.last_checkpoint import LastCheckpoint, StoppedError
from project.engine.training.non_finite import StopOnNonFinite
from project.engine.training.seed_each_batch import SeedEachBatch

__all__ = [
    "BestCheckpoint",
    "CachedFeatures",
    "ConfidentMistakesPlot",
    "ConfusionMatrixPlot",
    "DefaultCallbacks",
    "FirstBatchPlot",
    "FreezeParameters",
    "ImagesPerSecond",
    "LastCheckpoint",
    "LearningRate",
    "MetricsCSV",
    "PlotFiles",
    "ProgressLines",
    "ProgressiveResizing",
    "SeedEachBatch",
    "SpeedSettings",
    "StopOnNonFinite",
    "StoppedError",
]
