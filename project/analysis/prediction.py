"""Labelling images with a checkpoint, prepared as the checkpoint says."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from project.engine.loading.files import prepare
from project.model import ImageClassifier
from project.model.test_time import evaluation_logits


class Prediction(NamedTuple):
    """The most probable class of an image, its probability from 0 to 1, and those of all classes by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


def predict(model: ImageClassifier, paths: Sequence[str | Path], batch_size: int = 64) -> list[Prediction]:
    """Labels image files, in their order.

    Args:
        model: As ``ImageClassifier.load_from_checkpoint`` builds it, on any device; it is put into evaluation mode.
        paths: The files; one that is no image raises an ``UnreadableFileError``.
        batch_size: The number of images that the model sees at a time; no result depends on it.
    """
    model.eval()
    found: list[Prediction] = []
    for start in range(0, len(paths), batch_size):
        images = torch.stack([prepare(path, model.preprocessing) for path in paths[start : start + batch_size]])
        with torch.inference_mode():
            logits = evaluation_logits(model, images.to(model.device)).float()
        probabilities = model.probabilities(logits)
        scores = logits if model.has_one_class else probabilities
        for best, row in zip(scores.argmax(1).tolist(), probabilities.tolist(), strict=True):
            by_name = dict(zip(model.class_names, row, strict=True))
            found.append(Prediction(model.class_names[best], row[best], by_name))
    return found
