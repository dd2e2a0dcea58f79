"""An exported file beside its checkpoint, on the same images."""

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from project.deploy.formats import Classify
from project.model import ImageClassifier
from project.model.test_time import evaluation_logits

_SIZES = (1, 2, 5)  # an exported file must take batches of any size
_BATCH = 16


class Comparison(NamedTuple):
    """How far the probabilities of two classifiers are apart.

    Attributes:
        largest: The largest difference in any probability; nan where one is no number.
        changed: How many images get another label, or other labels.
        images: How many images there are.
    """

    largest: float
    changed: int
    images: int


def checkpoint_classifier(model: ImageClassifier) -> Classify:
    """What evaluation computes, in float32.

    Args:
        model: The model, on the CPU and in evaluation mode.
    """

    def classify(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return model.probabilities(evaluation_logits(model, images))

    return classify


def classify_all(classify: Classify, images: Tensor) -> Tensor:
    """Classifies images in batches of several sizes, of one image at first.

    Args:
        classify: What does it.
        images: uint8 (N, 3, crop, crop).

    Returns:
        float32 (N, classes).
    """
    return torch.cat([classify(batch) for batch in _batches(images)])


def decisions(probabilities: Tensor, several: bool) -> Tensor:
    """What evaluation takes images for.

    Args:
        probabilities: float (N, classes).
        several: Whether an image has any number of classes: all above 0.5, not only the most probable.

    Returns:
        bool (N, classes) where there are several; otherwise labels, int64 (N, 1).
    """
    return probabilities > 0.5 if several else probabilities.argmax(1, keepdim=True)


def compare(expected: Tensor, found: Tensor, several: bool = False) -> Comparison:
    """Compares probabilities.

    Args:
        expected: float (N, classes).
        found: The same.
        several: As in :func:`decisions`.
    """
    largest = (expected.double() - found.double()).abs().max().item()
    changed = (decisions(expected, several) != decisions(found, several)).any(1)
    return Comparison(largest, int(changed.sum()), len(expected))


def accuracy(probabilities: Tensor, labels: Tensor, several: bool = False) -> str:
    """The share of images whose label is right, or whose labels all are.

    Args:
        probabilities: float (N, classes).
        labels: int64 (N,); where there are several, (N, classes), 1 for each class that an image has.
        several: As in :func:`decisions`.
    """
    true = labels > 0.5 if several else labels[:, None]
    correct = int((decisions(probabilities, several) == true).all(1).sum())
    return f"{correct / len(labels):.2%} ({correct}/{len(labels)})"


def time_in_turns(classifiers: dict[str, Classify], images: Tensor, rounds: int = 5) -> dict[str, tuple[float, float]]:
    """Measures the speed of classifiers in turns, so that a machine that slows down slows all of them.

    Args:
        classifiers: By name.
        images: uint8 (N, 3, crop, crop), used over and over.
        rounds: How often each has its turn, after one that does not count.

    Returns:
        By name: the median seconds of one image alone, and of one image in batches of 16.
    """
    one, batch = images[:1], images[torch.arange(_BATCH) % len(images)]
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in classifiers}
    for _ in range(1 + rounds):
        for name, classify in classifiers.items():
            seconds[name].append((_seconds(classify, one), _seconds(classify, batch) / _BATCH))
    return {name: (median(a for a, _ in found[1:]), median(b for _, b in found[1:])) for name, found in seconds.items()}


def _seconds(classify: Classify, images: Tensor, least: float = 0.1) -> float:
    """The mean time of a call, over calls that take at least so many seconds."""
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < least or not calls:
        classify(images)
        calls += 1
    return elapsed / calls


def _batches(images: Tensor) -> Iterator[Tensor]:
    start = 0
    for size in (*_SIZES, *[_BATCH] * (len(images) // _BATCH + 1)):
        if start < len(images):
            yield images[start : start + size]
        start += size
