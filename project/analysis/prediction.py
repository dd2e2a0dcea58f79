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
    """The most probable class of an image, its probability from 0 to 1, and those of all classes by name.

    If a model has attributes, the label names the most probable class of each, and the probability is the least of theirs.
    """

    label: str
    probability: float
    probabilities: dict[str, float]


def predict(
    model: ImageClassifier, paths: Sequence[str | Path], batch_size: int = 64
) -> list[Prediction]:
    """Labels image files, in their order.

    Args:
        model: As ``ImageClassifier.load_from_checkpoint`` builds it, on any device; it is put into evaluation mode.
        paths: The files; one that is no image raises an ``UnreadableFileError``.
        batch_size: The number of images that the model sees at a time; no result depends on it.
    """
    model.eval()
    found: list[Prediction] = []
    for start in range(0, len(paths), batch_size):
        images = torch.stack(
            [prepare(path, model.preprocessing) for path in paths[start : start + batch_size]]
        )
        with torch.inference_mode():
            logits = evaluation_logits(model, images.to(model.device)).float()
        probabilities = model.probabilities(logits)
        best = torch.stack(
            [order[:, 0] for order in ranked(model, logits, probabilities).values()], 1
        )
        for positions, row in zip(best.tolist(), probabilities.tolist(), strict=True):
            label = " ".join(model.class_names[position] for position in positions)
            by_name = dict(zip(model.class_names, row, strict=True))
            found.append(Prediction(label, min(row[position] for position in positions), by_name))
    return found


def several_labels(model: ImageClassifier) -> bool:
    """Returns True if an image may have any number of classes, and not one of each attribute."""
    return not model.has_one_class and not model.attributes


def choices(model: ImageClassifier) -> dict[str, dict[str, int]]:
    """Returns the classes to choose among, by their names, for each attribute; a model without any has one choice, ``""``."""
    return model.attributes or {
        "": {name: position for position, name in enumerate(model.class_names)}
    }


def ranked(model: ImageClassifier, logits: Tensor, probabilities: Tensor) -> dict[str, Tensor]:
    """Sorts the positions of each choice's classes, the most probable first, int64 (N, classes)."""
    # by logits, as they differ where probabilities are rounded to the same; of equal ones the first, as in evaluation
    scores, orders = probabilities if several_labels(model) else logits, dict[str, Tensor]()
    for attribute, values in choices(model).items():
        positions = torch.tensor([*values.values()], device=scores.device)
        orders[attribute] = positions[
            scores[:, positions].argsort(dim=1, descending=True, stable=True)
        ]
    return orders
