"""Predictions of a model for image files, prepared as its checkpoint says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..loading.files import prepare


class Prediction(NamedTuple):
    """The most probable class of an image, its probability from 0 to 1, and those of all classes by name.

    If a model has attributes, the label names the most probable class of each, and the probability is
    the least of theirs.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


def predict(model: Any, paths: Sequence[str | Path], batch_size: int = 64) -> list[Prediction]:
    """Labels image files, in their order.

    Args:
        model: A model of a checkpoint, on any device; it is put into evaluation mode.
        paths: The files; one that is no image raises an ``UnreadableFileError``.
        batch_size: The number of images that the model sees at a time; no result depends on it.
    """
    model.eval()
    predictions: list[Prediction] = []
    for start in range(0, len(paths), batch_size):
        files = paths[start : start + batch_size]
        images = torch.stack([prepare(path, model.preprocessing) for path in files])
        with torch.inference_mode():
            probabilities = model.predict_step(images.to(model.device), 0).float()
        orders = ranked(model, probabilities).values()
        best = torch.stack([order[:, 0] for order in orders], 1)
        for positions, row in zip(best.tolist(), probabilities.tolist(), strict=True):
            label = " ".join(model.class_names[position] for position in positions)
            by_name = dict(zip(model.class_names, row, strict=True))
            probability = min(row[position] for position in positions)
            predictions.append(Prediction(label, probability, by_name))
    return predictions


def has_any_labels(model: Any) -> bool:
    """Returns True if an image may have any number of classes, and not one of each attribute."""
    return not model.has_one_class and not model.attributes


def choices(model: Any) -> dict[str, dict[str, int]]:
    """Returns the classes to choose among, by their names, for each attribute; ``""`` if there are none."""
    names = {name: position for position, name in enumerate(model.class_names)}
    return model.attributes or {"": names}


def ranked(model: Any, probabilities: Tensor) -> dict[str, Tensor]:
    """Sorts the positions of each choice's classes, the most probable first, int64 (N, classes)."""
    orders = dict[str, Tensor]()
    for attribute, values in choices(model).items():
        positions = torch.tensor([*values.values()], device=probabilities.device)
        shares = probabilities[:, positions]
        orders[attribute] = positions[shares.argsort(dim=1, descending=True, stable=True)]
    return orders


def label_names(label: int | list[float], class_names: Sequence[str]) -> str:
    """Names the class of an image, or all classes that it has a share of."""
    if isinstance(label, list):
        return " ".join(name for name, share in zip(class_names, label, strict=True) if share > 0)
    return class_names[label]
