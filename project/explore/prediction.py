"""Labelling image files with a checkpoint, prepared as the checkpoint says."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from project.data.crops import fit_image
from project.data.decode import decode, open_image
from project.model import ImageClassifier


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
        images = torch.stack([_prepared(model, path) for path in paths[start : start + batch_size]])
        with torch.inference_mode():
            rows = model(images.to(model.device)).float().softmax(1).tolist()
        for row in rows:
            probabilities = dict(zip(model.class_names, row, strict=True))
            label = max(probabilities, key=probabilities.__getitem__)
            found.append(Prediction(label, probabilities[label], probabilities))
    return found


def _prepared(model: ImageClassifier, path: str | Path) -> torch.Tensor:
    with open_image(path) as image:
        return fit_image(decode(image, path), model.preprocessing)
