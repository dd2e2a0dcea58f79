"""Behaviours of a run that are no part of the model: one or a few closely related ones a file."""

from project.callbacks.about import AboutInCheckpoint
from project.callbacks.checkpoints import RunCheckpoint
from project.callbacks.finite import StopAtNonFinite
from project.callbacks.last_checkpoint import LastCheckpoint, StoppedError
from project.callbacks.pictures import ConfidentMistakesPicture, ConfusionMatrixPicture, FirstBatchPicture
from project.callbacks.progressive import ProgressiveResizing
from project.callbacks.randomness import SeedEachBatch
from project.callbacks.throughput import ImagesPerSecond, SpeedSettings

__all__ = [
    "AboutInCheckpoint",
    "ConfidentMistakesPicture",
    "ConfusionMatrixPicture",
    "FirstBatchPicture",
    "ImagesPerSecond",
    "LastCheckpoint",
    "ProgressiveResizing",
    "RunCheckpoint",
    "SeedEachBatch",
    "SpeedSettings",
    "StopAtNonFinite",
    "StoppedError",
]
