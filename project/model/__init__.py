"""The classifier. Nothing in here opens a file."""

from project.model.classifier import ImageClassifier
from project.model.losses import CrossEntropy
from project.model.metrics import MultilabelMetrics
from project.model.muon import Muon
from project.model.schedules import CosineWithWarmup

__all__ = ["CosineWithWarmup", "CrossEntropy", "ImageClassifier", "MultilabelMetrics", "Muon"]
