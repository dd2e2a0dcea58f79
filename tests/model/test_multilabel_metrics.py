"""Metrics of images that may have several classes, against scikit-learn."""

import pytest
import torch
from sklearn.metrics import accuracy_score, multilabel_confusion_matrix, precision_recall_fscore_support

from project.model import MultilabelMetrics


def predictions(count: int = 200, classes: int = 6):
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(count, classes, generator=generator) < 0.3).long()
    logits = torch.randn(count, classes, generator=generator) + 2 * labels - 1
    return logits, labels, torch.rand(count, generator=generator)


def measure(*batches):
    metric = MultilabelMetrics(6)
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def test_they_are_scikit_learns():
    logits, labels, losses = predictions()
    found, predicted = measure((logits, labels, losses)), (logits > 0).long()
    assert (found.confusion.numpy() == multilabel_confusion_matrix(labels, predicted)).all()
    assert found.total == 200
    assert found.accuracy == pytest.approx(accuracy_score(labels, predicted), rel=1e-12)
    assert found.loss == pytest.approx(losses.double().mean().item(), abs=2**-20)
    expected = zip(*precision_recall_fscore_support(labels, predicted), strict=True)
    for row, values in zip(found.per_class, expected, strict=True):
        assert list(row.values()) == pytest.approx(values, rel=1e-12)
    assert found.f1 == pytest.approx(precision_recall_fscore_support(labels, predicted, average="macro")[2], rel=1e-12)


def test_they_do_not_depend_on_batches_and_leave_out_what_another_process_counts():
    logits, labels, losses = predictions()
    whole = measure((logits, labels, losses))
    again = (logits[:5], torch.full((5, 6), -1), losses[:5])
    parts = [(logits[at], labels[at], losses[at]) for at in torch.arange(200).split(33)]
    assert measure(*parts, again).as_dict() == whole.as_dict()


def test_mixtures_of_labels_are_rounded():
    logits, labels, losses = predictions()
    mixed = 0.9 * labels + 0.1 * labels.roll(1, 0)
    assert measure((logits, mixed, losses)).as_dict() == measure((logits, labels, losses)).as_dict()
