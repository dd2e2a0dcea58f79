"""Labelling images with a checkpoint, prepared as the checkpoint says."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from project.engine.loading.files import prepare
from project.model import ImageClassifier
from project.model.test_time import evaluation_logits


class Prediction(NamedTuple):
    """What a model takes an image for.

    Attributes:
        label: The most probable class.
        probability: How sure the model is of it, from 0 to 1.
        probabilities: Those of all classes, by name.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


def predict(model: ImageClassifier, paths: Sequence[str | Path], batch_size: int = 64) -> list[Prediction]:
    """Labels image files.

    Args:
        model: As ``ImageClassifier.load_from_checkpoint`` builds it, on any device; it is put into evaluation mode.
        paths: The files.
        batch_size: How many images the model sees at a time; no result depends on it.

    Returns:
        One prediction for each file, in their order.

    Raises:
        UnreadableFileError: A file is no image, or is damaged.
    """
    model.eval()
    found: list[Prediction] = []
    for start in range(0, len(paths), batch_size):
        images = torch.stack([prepare(path, model.preprocessing) for path in paths[start : start + batch_size]])
        with torch.inference_mode():
            logits = evaluation_logits(model, images.to(model.device)).float()
        for best, row in zip(logits.argmax(1).tolist(), model.probabilities(logits).tolist(), strict=True):
            by_name = dict(zip(model.class_names, row, strict=True))
            found.append(Prediction(model.class_names[best], row[best], by_name))
    return found


def ranked(model: ImageClassifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """The classes of each image, the most probable first; of equal ones the first, as evaluation counts them.

    Args:
        model: In evaluation mode.
        images: uint8 (N, 3, height, width) on the model's device.

    Returns:
        Labels, int64 (N, classes), and their probabilities, float32 (N, classes).
    """
    logits = evaluation_logits(model, images).float()
    probabilities = model.probabilities(logits)
    # by logits, as they differ where probabilities are rounded to the same
    labels = logits.argsort(dim=1, descending=True, stable=True)
    return labels, probabilities.gather(1, labels)
