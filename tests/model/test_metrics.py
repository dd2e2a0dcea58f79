"""Metrics are scikit-learn's, of images with one class or several, and do not depend on how a set is cut."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    multilabel_confusion_matrix,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torch.nn import functional as F

from project.model import MultilabelMetrics
from project.model.metrics import ClassificationMetrics, Metrics

CLASSES = [2, 3, 5, 6, 10, 40]
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
def test_metrics_are_scikit_learns(classes):
    logits, labels, losses = predictions(classes)
    metrics, predicted, each = measure((logits, labels, losses)), logits.argmax(1), range(classes)
    assert (metrics.confusion.numpy() == confusion_matrix(labels, predicted, labels=each)).all()
    assert (metrics.correct, metrics.total) == (int((labels == predicted).sum()), 200)
    assert metrics.accuracy == EQUAL(accuracy_score(labels, predicted), rel=1e-12)
    assert metrics.loss == EQUAL(F.cross_entropy(logits.double(), labels).item(), abs=1e-6)
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


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("present", [1, 2, 6])
def test_macro_f1_is_scikit_learns_with_some_classes_absent(classes, present):
    logits, labels, losses = predictions(classes, labels=torch.arange(30) % min(present, classes))
    expected = f1_score(labels, logits.argmax(1), average="macro", zero_division=0)
    assert measure((logits, labels, losses)).f1 == EQUAL(expected, rel=1e-12)


def test_metrics_of_several_classes_are_scikit_learns():
    logits, labels, losses = several()
    found, predicted = measure((logits, labels, losses)), (logits > 0).long()
    assert (found.confusion.numpy() == multilabel_confusion_matrix(labels, predicted)).all()
    assert found.total == 200
    assert found.accuracy == EQUAL(accuracy_score(labels, predicted), rel=1e-12)
    assert found.loss == EQUAL(losses.double().mean().item(), abs=2**-20)
    expected = zip(*precision_recall_fscore_support(labels, predicted), strict=True)
    for row, values in zip(found.per_class, expected, strict=True):
        assert list(row.values()) == EQUAL(values, rel=1e-12)
    assert found.f1 == EQUAL(precision_recall_fscore_support(labels, predicted, average="macro")[2], rel=1e-12)
    mixed = 0.9 * labels + 0.1 * labels.roll(1, 0)  # is rounded
    assert same(measure((logits, mixed, losses)), found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_in_any_precision_are_counted(dtype):
    logits, labels, losses = predictions(10)
    found = measure((logits.to(dtype), labels, losses.to(dtype)))
    assert found.loss == EQUAL(losses.to(dtype).double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("batch", [predictions(3), predictions(10), several()], ids=["3", "10", "several"])
@pytest.mark.parametrize("size", [1, 7, 64, 200])
def test_neither_the_batches_nor_their_order_change_a_bit(batch, size):
    before, whole = [field.clone() for field in batch], measure(batch)
    for positions in (torch.arange(200), torch.randperm(200, generator=torch.Generator().manual_seed(1))):
        parts = [tuple(field[part] for field in batch) for part in positions.split(size)]
        assert same(measure(*parts), whole)
    assert all(torch.equal(old, new) for old, new in zip(before, batch, strict=True))


@pytest.mark.parametrize("processes", [2, 3, 7])
def test_states_added_up_over_processes_give_the_same_to_the_last_bit(processes):
    batch = predictions(10)
    together = ClassificationMetrics(10)
    for rank in range(processes):
        one = ClassificationMetrics(10)
        one.update(*(field[rank::processes] for field in batch))
        for name in one.metric_state:
            reduction: Any = one._reductions[name]
            setattr(together, name, reduction(torch.stack([getattr(together, name), getattr(one, name)])))
    together._update_count = 1  # else torchmetrics warns that nothing was counted
    assert same(together.compute(), measure(batch))


@pytest.mark.parametrize("batch", [predictions(10), several()], ids=["one class", "several"])
def test_images_that_another_process_counts_are_left_out_whatever_their_loss(batch):
    logits, labels, losses = (field.clone() for field in batch)
    elsewhere = torch.arange(200) % 3 == 0
    labels[elsewhere] = -1
    logits[elsewhere], losses[elsewhere] = math.nan, math.nan
    found = measure((logits, labels, losses))
    assert same(found, measure(tuple(field[~elsewhere] for field in batch)))
    assert found.total == 133


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_loss_that_is_not_finite_shows_in_the_mean(value):
    logits, labels, losses = predictions(10)
    losses[17] = value
    metrics = measure((logits, labels, losses))
    assert math.isnan(metrics.loss)
    assert metrics.total == 200


@pytest.mark.parametrize("value", [1e-4, 80.0, 1e5, 1e13, 2e19, 3e38])
def test_a_large_loss_is_never_reported_as_another(value):
    logits, labels, _ = predictions(10)
    loss = measure((logits, labels, torch.full((200,), value))).loss
    assert math.isnan(loss) if value > 1e6 else loss == EQUAL(value, rel=1e-2)


def test_metrics_stay_as_they_are_when_the_metric_counts_on_and_reset_forgets_everything():
    metric = ClassificationMetrics(10)
    first, second = predictions(10), predictions(10, seed=1)
    first[2][0] = math.nan
    metric.update(*first)
    metrics = metric.compute()
    before = str(metrics.as_dict())
    metric.reset()
    metric.update(*second)
    assert same(metric.compute(), measure(second))
    assert str(metrics.as_dict()) == before
