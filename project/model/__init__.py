"""The classifier and what it is made of: networks, losses, metrics, optimizers and schedules."""

from project.model.classifier import ImageClassifier
from project.model.losses import BinaryCrossEntropy, CrossEntropy
from project.model.schedules import CosineWithWarmup

__all__ = [
    "BinaryCrossEntropy",
    "CosineWithWarmup",
    "CrossEntropy",
    "ImageClassifier",
]
