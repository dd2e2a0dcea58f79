"""The classifier. Nothing in here opens a file."""

from project.model.classifier import ImageClassifier

__all__ = ["ImageClassifier"]
