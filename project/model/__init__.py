"""The classifier and what it is made of: networks, losses, metrics, optimizers and schedules."""

from project.model.classifier import ImageClassifier
from project.model.losses import CrossEntropy
from project.model.schedules import CosineWithWarmup

__all__ = [
    "CosineWithWarmup",
    "CrossEntropy",
    "ImageClassifier",
]
