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
        changed: How many images get another label.
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


def compare(expected: Tensor, found: Tensor) -> Comparison:
    """Compares probabilities.

    Args:
        expected: float (N, classes).
        found: The same.
    """
    largest = (expected.double() - found.double()).abs().max().item()
    return Comparison(largest, int((expected.argmax(1) != found.argmax(1)).sum()), len(expected))


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
