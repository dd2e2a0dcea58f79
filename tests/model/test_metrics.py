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
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torch.nn import functional as F

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


def measure(classes, *batches):
    metric = ClassificationMetrics(classes)
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def same(first: Metrics, second: Metrics):
    """To the last bit."""
    return (
        first.loss == second.loss
        and torch.equal(first.confusion, second.confusion)
        and first.top5_correct == second.top5_correct
        and first.as_dict() == second.as_dict()
    )


@pytest.mark.parametrize("classes", CLASSES)
def test_the_confusion_matrix_and_accuracy_are_scikit_learns(classes):
    logits, labels, losses = predictions(classes)
    metrics, predicted = measure(classes, (logits, labels, losses)), logits.argmax(1)
    assert (metrics.confusion.numpy() == confusion_matrix(labels, predicted, labels=range(classes))).all()
    assert (metrics.correct, metrics.total) == (int((labels == predicted).sum()), 200)
    assert metrics.accuracy == EQUAL(accuracy_score(labels, predicted), rel=1e-12)


@pytest.mark.parametrize("classes", CLASSES)
def test_precision_recall_and_f1_of_each_class_are_scikit_learns(classes):
    logits, labels, losses = predictions(classes, count=60)
    expected = precision_recall_fscore_support(labels, logits.argmax(1), labels=range(classes), zero_division=0)
    found = measure(classes, (logits, labels, losses)).per_class
    for key, values in zip(("precision", "recall", "f1", "total"), expected, strict=True):
        assert [row[key] for row in found] == EQUAL(values.tolist(), rel=1e-12)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("present", [1, 2, 6])
def test_macro_f1_is_scikit_learns_with_some_classes_absent(classes, present):
    labels = torch.arange(30) % min(present, classes)
    logits, labels, losses = predictions(classes, labels=labels)
    metrics = measure(classes, (logits, labels, losses))
    assert metrics.f1 == EQUAL(f1_score(labels, logits.argmax(1), average="macro", zero_division=0), rel=1e-12)


@pytest.mark.parametrize("classes", CLASSES)
def test_top_5_is_scikit_learns_where_there_are_more_than_five_classes(classes):
    logits, labels, losses = predictions(classes)
    metrics = measure(classes, (logits, labels, losses))
    if classes > 5:
        correct = top_k_accuracy_score(labels, logits, k=5, labels=range(classes), normalize=False)
        assert metrics.top5_correct == correct
        assert metrics.rates()["top5"] == correct / 200
    else:
        assert metrics.top5_correct is None
        assert "top5" not in metrics.as_dict()


@pytest.mark.parametrize("classes", CLASSES)
def test_the_loss_is_the_mean_in_double_precision(classes):
    batch = predictions(classes, count=3000)
    assert measure(classes, *zip(*(field.split(100) for field in batch), strict=True)).loss == EQUAL(
        F.cross_entropy(batch[0].double(), batch[1]).item(), abs=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_losses_in_any_precision_are_counted(dtype):
    logits, labels, losses = predictions(10)
    found = measure(10, (logits.to(dtype), labels, losses.to(dtype)))
    assert found.loss == EQUAL(losses.to(dtype).double().mean().item(), abs=1e-6)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 200])
def test_neither_the_batches_nor_their_order_change_a_bit(classes, batch_size):
    batch = predictions(classes)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    whole = measure(classes, batch)
    for positions in (torch.arange(200), order):
        parts = [tuple(field[part] for field in batch) for part in positions.split(batch_size)]
        assert same(measure(classes, *parts), whole)


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
    assert same(together.compute(), measure(10, batch))


def test_images_that_another_process_counts_are_left_out():
    logits, labels, losses = predictions(10)
    marked = torch.where(torch.arange(200) % 3 == 0, -1, labels)
    kept = marked >= 0
    found = measure(10, (logits, marked, losses))
    assert same(found, measure(10, (logits[kept], labels[kept], losses[kept])))
    assert found.total == 133


def test_what_is_not_counted_may_have_any_loss():
    logits, labels, losses = predictions(10, count=4)
    labels[0], losses[0], logits[0] = -1, math.nan, math.nan
    assert same(measure(10, (logits, labels, losses)), measure(10, (logits[1:], labels[1:], losses[1:])))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_loss_that_is_not_finite_shows_in_the_mean(value):
    logits, labels, losses = predictions(10)
    losses[17] = value
    metrics = measure(10, *zip(logits.split(10), labels.split(10), losses.split(10), strict=True))
    assert math.isnan(metrics.loss)
    assert metrics.total == 200


@pytest.mark.parametrize("value", [1e-4, 80.0, 1e5, 1e13, 2e19, 3e38])
def test_a_large_loss_is_never_reported_as_another(value):
    logits, labels, _ = predictions(10)
    loss = measure(10, (logits, labels, torch.full((200,), value))).loss
    assert math.isnan(loss) or loss == EQUAL(value, rel=1e-2)
    assert value > 1e6 or not math.isnan(loss)


def test_reset_forgets_everything():
    metric = ClassificationMetrics(10)
    first, second = predictions(10), predictions(10, seed=1)
    first[2][0] = math.nan
    metric.update(*first)
    metric.compute()
    metric.reset()
    metric.update(*second)
    assert same(metric.compute(), measure(10, second))


def test_figures_stay_as_they_are_when_the_metric_goes_on():
    metric = ClassificationMetrics(10)
    metric.update(*predictions(10))
    metrics = metric.compute()
    before = metrics.as_dict()
    metric.update(*predictions(10, seed=1))
    metric.compute()
    metric.reset()
    metric.update(*predictions(10, seed=2))
    assert metrics.as_dict() == before


def test_counting_leaves_its_input_alone():
    batch = predictions(10)
    before = [field.clone() for field in batch]
    measure(10, batch)
    assert all(torch.equal(old, new) for old, new in zip(before, batch, strict=True))


@pytest.mark.parametrize("classes", [3, 10])
def test_figures_as_a_dict_are_plain_data_that_add_up(classes):
    metrics = measure(classes, predictions(classes))
    plain = metrics.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert np.trace(plain["confusion_matrix"]) == plain["correct"]
    assert np.sum(plain["confusion_matrix"]) == plain["total"] == 200
    assert plain["accuracy"] == plain["correct"] / plain["total"]
    assert set(metrics.rates()) <= set(plain)
