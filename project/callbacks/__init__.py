"""Behaviours of a run that are no part of the model: one or a few closely related ones a file."""

from project.callbacks.cached_features import CachedFeatures
from project.callbacks.confident_mistakes import ConfidentMistakesPlot
from project.callbacks.confusion_matrix import ConfusionMatrixPlot
from project.callbacks.defaults import DefaultCallbacks
from project.callbacks.first_batch import FirstBatchPlot
from project.callbacks.learning_rate import LearningRate
from project.callbacks.metrics_csv import MetricsCSV
from project.callbacks.plots import PlotFiles
from project.callbacks.predictions import CollectPredictions
from project.callbacks.progress_lines import ProgressLines
from project.callbacks.progressive_resizing import ProgressiveResizing
from project.callbacks.projector import Projector
from project.callbacks.throughput import ImagesPerSecond, SpeedSettings
from project.engine.training.best_checkpoint import BestCheckpoint
from project.engine.training.last_checkpoint import LastCheckpoint, StoppedError
from project.engine.training.lightning_fixes import DelayedAveraging, LogInterval
from project.engine.training.non_finite import StopOnNonFinite
from project.engine.training.seed_each_batch import SeedEachBatch

__all__ = [
    "BestCheckpoint",
    "CachedFeatures",
    "CollectPredictions",
    "ConfidentMistakesPlot",
    "ConfusionMatrixPlot",
    "DefaultCallbacks",
    "DelayedAveraging",
    "FirstBatchPlot",
    "ImagesPerSecond",
    "LastCheckpoint",
    "LearningRate",
    "LogInterval",
    "MetricsCSV",
    "PlotFiles",
    "ProgressLines",
    "ProgressiveResizing",
    "Projector",
    "SeedEachBatch",
    "SpeedSettings",
    "StopOnNonFinite",
    "StoppedError",
]
