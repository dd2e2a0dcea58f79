"""Metrics are scikit-learn's, of images with one class or several, and do not depend on how a set is cut."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torch.nn import functional as F

from project.model import MultilabelMetrics
from project.model.metrics import ClassificationMetrics, Metrics

CLASSES = [2, 5, 6, 40]
EQUAL = pytest.approx


def predictions(classes, count=200, seed=0, labels=None):
    """Random logits that favour the label a little, labels, and losses."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.randint(classes, (count,), generator=generator) if labels is None else labels
    logits = torch.randn(len(true), classes, generator=generator)
    logits[torch.arange(len(true)), true.clamp(min=0)] += 0.7
    return logits, true, F.cross_entropy(logits, true, ignore_index=-1, reduction="none")


def several(classes=6, count=200):
    """As predictions, but of images that may have several classes."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(count, classes, generator=generator) < 0.3).long()
    logits = torch.randn(count, classes, generator=generator) + 2 * labels - 1
    return logits, labels, torch.rand(count, generator=generator)


def measure(*batches):
    logits, labels, _ = batches[0]
    metric = (ClassificationMetrics if labels.dim() == 1 else MultilabelMetrics)(logits.shape[1])
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def same(first: Metrics, second: Metrics):
    """To the last bit."""
    return first.as_dict() == second.as_dict() and torch.equal(first.confusion, second.confusion)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("present", [1, 2, 40])
def test_metrics_are_scikit_learns_with_some_classes_absent_too(classes, present):
    logits, labels, losses = predictions(classes, labels=torch.arange(200) % min(present, classes))
    metrics, predicted, each = measure((logits, labels, losses)), logits.argmax(1), range(classes)
    assert (metrics.confusion.numpy() == confusion_matrix(labels, predicted, labels=each)).all()
    assert (metrics.correct, metrics.total) == (int((labels == predicted).sum()), 200)
    assert metrics.accuracy == EQUAL(accuracy_score(labels, predicted), rel=1e-12)
    assert metrics.loss == EQUAL(F.cross_entropy(logits.double(), labels).item(), abs=1e-6)
    assert metrics.f1 == EQUAL(f1_score(labels, predicted, average="macro", zero_division=0), rel=1e-12)
    expected = precision_recall_fscore_support(labels, predicted, labels=each, zero_division=0)
    for key, values in zip(("precision", "recall", "f1", "total"), expected, strict=True):
        assert [row[key] for row in metrics.per_class] == EQUAL(values.tolist(), rel=1e-12)
    if classes > 5:
        correct = top_k_accuracy_score(labels, logits, k=5, labels=each, normalize=False)
        assert (metrics.top5_correct, metrics.rates()["top5"]) == (correct, correct / 200)
    else:
        assert metrics.top5_correct is None
        assert "top5" not in metrics.as_dict()
    plain = metrics.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert np.trace(plain["confusion_matrix"]) == plain["correct"]


@pytest.mark.parametrize("batch", [predictions(3), predictions(10), several()], ids=["3", "10", "several"])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_neither_the_batches_nor_their_order_change_a_bit(batch, size):
    before, whole = [field.clone() for field in batch], measure(batch)
    for positions in (torch.arange(200), torch.randperm(200, generator=torch.Generator().manual_seed(1))):
        parts = [tuple(field[part] for field in batch) for part in positions.split(size)]
        assert same(measure(*parts), whole)
    assert all(torch.equal(old, new) for old, new in zip(before, batch, strict=True))


def test_soft_labels_of_several_classes_are_rounded():
    logits, labels, losses = several()
    mixed = 0.9 * labels + 0.1 * labels.roll(1, 0)
    assert same(measure((logits, mixed, losses)), measure((logits, labels, losses)))


@pytest.mark.parametrize("batch", [predictions(10), several()], ids=["one class", "several"])
def test_images_that_another_process_counts_are_left_out_whatever_their_loss(batch):
    logits, labels, losses = (field.clone() for field in batch)
    elsewhere = torch.arange(200) % 3 == 0
    labels[elsewhere] = -1
    logits[elsewhere], losses[elsewhere] = math.nan, math.nan
    found = measure((logits, labels, losses))
    assert same(found, measure(tuple(field[~elsewhere] for field in batch)))
    assert found.total == 133


@pytest.mark.parametrize("value", [1e-4, 80.0, 1e5, 1e13, 3e38, math.inf, -math.inf, math.nan])
def test_a_large_loss_is_never_reported_as_another_and_one_that_is_not_finite_shows(value):
    logits, labels, losses = predictions(10)
    found = measure((logits, labels, torch.full((200,), value)))
    assert math.isnan(found.loss) if not value <= 1e6 or value < 0 else found.loss == EQUAL(value, rel=1e-2)
    losses[17] = value
    assert math.isnan(measure((logits, labels, losses)).loss) == math.isnan(found.loss)
    assert found.total == 200
