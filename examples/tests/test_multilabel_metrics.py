"""Metrics of several labels an image equal scikit-learn's, however a set is cut."""

import pytest
import torch
from sklearn import metrics as sklearn

from examples.multilabel import MultilabelClassifier
from examples.recipes.multilabel_metrics import BestThresholds
from tests.model.test_metrics import (
    measure,
    require_as_a_plain_loop,
    require_the_same_however_it_is_cut,
    require_unlabelled_left_out,
)


def several(classes=6):
    """As predictions, but of images that may have several classes."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(200, classes, generator=generator) < 0.3).long()
    logits = torch.randn(200, classes, generator=generator) + 2 * labels - 1
    return logits, labels, torch.rand(200, generator=generator)


@pytest.mark.parametrize("offset", [0, 0.5], ids=["on edges", "between edges"])
def test_thresholds_have_the_greatest_f1_of_scikit_learns_curve_and_lie_near_the_middle(offset):
    labels = several()[1]
    logits = 2 * torch.randn(labels.shape, generator=torch.Generator().manual_seed(1)) + 2 * labels
    logits[:, 4] -= 11  # all below 1%
    logits[:, 5] += 9  # or above 99%
    logits = ((32 * logits).floor() + offset) / 32
    labels[:, 0] = 0  # absent
    labels[:, 1] = -1  # unknown
    logits[:, 2] = 6 * labels[:, 2] - 3  # separable
    shares, metric = logits.sigmoid(), BestThresholds(6)
    metric.update(shares, labels)
    chosen = metric.compute()["thresholds"]
    assert chosen[:3].tolist() == [0.5, 0.5, 0.5]
    for position in range(3, 6):
        true, scores = labels[:, position], shares[:, position]
        precision, recall, _ = sklearn.precision_recall_curve(true, scores)
        curve = 2 * precision * recall / (precision + recall).clip(1e-9)
        f1 = sklearn.f1_score(true, scores > chosen[position])
        assert f1 == pytest.approx(curve.max(), rel=1e-9)


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_metrics_equal_a_plain_loop(multilabel, command, split, tmp_path):
    require_as_a_plain_loop(multilabel, command, split, tmp_path)


@pytest.mark.parametrize("size", [1, 64])
def test_neither_the_batches_nor_their_order_change_a_bit(size):
    require_the_same_however_it_is_cut(several(), size, MultilabelClassifier)


def test_soft_labels_are_rounded_and_images_without_a_label_left_out():
    logits, labels, losses = several()
    soft = 0.9 * labels + 0.1 * labels.roll(1, 0)
    batches = (logits, soft, losses), (logits, labels, losses)
    first, second = (measure(batch, cls=MultilabelClassifier) for batch in batches)
    assert first == second
    require_unlabelled_left_out(several(), MultilabelClassifier)
