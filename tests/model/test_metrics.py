"""Metrics of any classes, one or several an image, however a set is cut; tests/test_metrics_by_hand.py has whole runs."""

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from project.engine.errors import UserError
from project.model import ImageClassifier, MultilabelMetrics
from project.model.metrics import ClassificationMetrics, Metrics
from tests.model.test_classifier import Memory, classifier, trainer
from tests.test_metrics_by_hand import by_hand


def predictions(classes, labels=None):
    """Random logits that favour the label a little, labels, and losses."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (200,), generator=generator) if labels is None else labels
    logits = torch.randn(200, classes, generator=generator) + 0.7 * F.one_hot(labels, classes)
    return logits, labels, F.cross_entropy(logits, labels, reduction="none")


def several(classes=6):
    """As predictions, but of images that may have several classes."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, classes, generator=generator) < 0.3).long()
    logits = torch.randn(200, classes, generator=generator) + 2 * labels - 1
    return logits, labels, torch.rand(200, generator=generator)


def measure(*batches):
    logits, labels, _ = batches[0]
    metric = (ClassificationMetrics if labels.dim() == 1 else MultilabelMetrics)(logits.shape[1])
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def same(first: Metrics, second: Metrics):
    """To the last bit."""
    return first.as_dict() == second.as_dict() and first.best_thresholds == second.best_thresholds


@pytest.mark.parametrize("classes", [2, 5, 6, 40])
@pytest.mark.parametrize("present", [1, 40])
def test_metrics_are_scikit_learns_with_some_classes_absent_too(classes, present):
    logits, labels, losses = predictions(classes, torch.arange(200) % min(present, classes))
    found, expected = (
        measure((logits, labels, losses)).as_dict(),
        by_hand(labels.numpy(), logits.double().numpy()),
    )
    names = ("accuracy", "loss", "f1", *(["top5"] if classes > 5 else []))
    assert {name: found[name] for name in names} == pytest.approx(
        {name: expected[name] for name in names}, rel=1e-6
    )
    assert all(found[name] == expected[name] for name in ("confusion_matrix", "correct", "total"))
    assert ("top5" in found) == (classes > 5)


@pytest.mark.parametrize("offset", [0, 0.5], ids=["on edges", "between edges"])
def test_thresholds_have_the_greatest_f1_of_scikit_learns_curve_and_lie_near_the_middle(offset):
    _, labels, losses = several()
    logits = 2 * torch.randn(labels.shape, generator=torch.Generator().manual_seed(1)) + 2 * labels
    logits[:, 4], logits[:, 5] = logits[:, 4] - 11, logits[:, 5] + 9  # all below 1%, or above 99%
    logits = ((32 * logits).floor() + offset) / 32
    labels[:, 0], logits[:, 1], labels[:, 2] = (
        0,
        6 * labels[:, 1] - 3,
        -1,
    )  # absent, separable, unknown
    metric = MultilabelMetrics(labels.shape[1]).eval()
    metric.update(logits, labels, losses)
    metric.thresholds = chosen = metric.best_thresholds() or []
    assert chosen[:3] == [0.5, 0.5, 0.5]
    assert chosen[4] < 0.01 < 0.99 < chosen[5]
    for predicted, own, true in list(
        zip(metric.predicted(logits).T, logits.T, labels.T, strict=True)
    )[3:]:
        precision, recall, _ = sklearn.precision_recall_curve(true, own)
        curve = 2 * precision * recall / (precision + recall).clip(1e-9)
        assert sklearn.f1_score(true, predicted) == pytest.approx(curve.max(), rel=1e-9)


@pytest.mark.parametrize(
    "batch", [predictions(3), predictions(10), several()], ids=["3", "10", "several"]
)
@pytest.mark.parametrize("size", [1, 64])
def test_neither_the_batches_nor_their_order_change_a_bit(batch, size):
    for positions in (
        torch.arange(200),
        torch.randperm(200, generator=torch.Generator().manual_seed(1)),
    ):
        parts = [tuple(field[part] for field in batch) for part in positions.split(size)]
        assert same(measure(*parts), measure(batch))


def test_soft_labels_of_several_classes_are_rounded():
    logits, labels, losses = several()
    assert same(
        measure((logits, 0.9 * labels + 0.1 * labels.roll(1, 0), losses)),
        measure((logits, labels, losses)),
    )


@pytest.mark.parametrize("batch", [predictions(10), several()], ids=["one class", "several"])
def test_images_that_another_process_counts_are_left_out_whatever_their_loss(batch):
    elsewhere = torch.arange(200) % 3 == 0
    spoilt = [field.clone() for field in batch]
    for field, value in zip(spoilt, (math.nan, -1, math.nan), strict=True):
        field[elsewhere] = value
    assert same(measure(tuple(spoilt)), measure(tuple(field[~elsewhere] for field in batch)))


def test_counts_of_a_checkpoint_are_restored_except_where_an_older_run_counted_otherwise():
    before, after, fresh = (ClassificationMetrics(10) for _ in range(3))
    before.update(*predictions(10))
    after.set_counts(before.counts())
    assert same(after.results(), before.results())
    fresh.set_counts(before.counts() | {"confusion": torch.ones(101, dtype=torch.int64)})
    assert (fresh.results().total, fresh.loss_units) == (0, before.loss_units)


@pytest.mark.parametrize("value", [1e-4, 80.0, 1e5, 1e13, 3e38, math.inf, -math.inf, math.nan])
def test_a_large_loss_is_never_reported_as_another_and_one_that_is_not_finite_shows(value):
    logits, labels, losses = predictions(10)
    found = measure((logits, labels, torch.full((200,), value))).loss
    assert found == pytest.approx(value if abs(value) <= 1e6 else math.nan, rel=1e-2, nan_ok=True)
    losses[17] = value
    assert math.isnan(measure((logits, labels, losses)).loss) == math.isnan(found)


@pytest.mark.parametrize("percent", [50, 90, 99])
def test_prediction_sets_hold_the_true_class_as_often_as_was_asked_for(percent):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40_000, 20, generator=generator)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator)[:, 0]
    losses, shares = (
        F.cross_entropy(logits, labels, reduction="none"),
        logits.softmax(1)[range(40_000), labels],
    )
    covered: list[bool] = []
    for part in torch.arange(40_000).split(400):
        metric = ClassificationMetrics(20).eval()
        for batch in part[:200].split(64):
            metric.update(logits[batch], labels[batch], losses[batch])
        metric.update(logits[:9], torch.full((9,), -1), losses[:9])  # another process's
        threshold = metric.compute().coverage[percent]
        exact = (
            shares[part[:200]].sort().values[201 * (100 - percent) // 100 - 1]
        )  # so many of 200 may be left out
        assert exact * 0.969 - 1e-6 <= threshold <= exact
        covered += (shares[part[200:]] >= threshold).tolist()
    assert -0.005 <= np.mean(covered) - percent / 100 <= 0.01


def test_too_few_images_leave_no_class_out_and_training_counts_none():
    logits, labels, losses = (field[:9] for field in predictions(5))
    metric = ClassificationMetrics(5)
    metric.update(logits, labels, losses)
    assert metric.compute().coverage == {}
    metric.eval().update(torch.full((9, 5), math.nan), labels, losses)
    found = metric.compute().coverage
    assert (found[95], found[50]) == (0, 0)


def with_metrics(**metrics: Metric):
    return classifier(
        type("Own", (ImageClassifier,), {"configure_metrics": lambda _: deepcopy(metrics)})
    )


def test_metrics_of_the_users_count_the_same_images_and_are_not_merged_by_what_the_first_batch_shows():
    top = {f"top{k}": MulticlassAccuracy(3, top_k=k, average="micro") for k in (1, 2)}
    model = with_metrics(**top, error=MulticlassCalibrationError(3))
    assert (model.monitors()["val/top1"], model.monitors()["val/error"]) == ("max", "min")
    logits, error = torch.tensor([[3.0, 2.0, 1.0]]).expand(2, 3), MulticlassCalibrationError(3)
    for labels in (
        [0, 0],
        [1, 2],
        [-1, 0],
        [-1, -1],
    ):  # the first are all correct by both; -1 are another process's
        one = torch.tensor(labels)
        model.measure("val", logits, one, torch.zeros(2))
        error.update(logits[one >= 0], one[one >= 0])
    assert model.conclude("val").own == pytest.approx(
        {"top1": 3 / 5, "top2": 4 / 5, "error": float(error.compute())}
    )
    assert model.conclude("val") is None


@pytest.mark.filterwarnings("ignore")
def test_a_metric_has_a_name_of_its_own_and_is_one_number():
    with pytest.raises(UserError, match="the name of a metric must be none of accuracy"):
        with_metrics(loss=MulticlassAccuracy(3))
    model = with_metrics(each=MulticlassAccuracy(3, average="none"))
    with pytest.raises(UserError, match="'each' must be one number"):
        trainer().test(model, datamodule=Memory(), verbose=False)
