"""Metrics equal scikit-learn's on a plain loop's probabilities: of whole runs, and of any classes however a set is cut."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightkeeper.images._best_checkpoint import default_mode
from sklearn import metrics as sklearn
from torch.nn import functional as F
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassRecall,
)
from torchmetrics.wrappers import ClasswiseWrapper

from project.analysis.tables import class_rates
from project.model import ImageClassifier
from tests.conftest import SLIM, TINY, evaluate, fit, opened, read_json
from tests.model.test_classifier import PREPROCESSING


@pytest.fixture(scope="module", params=["tiny_run", "two views"])
def run(request, tmp_path_factory):
    if request.param != "two views":
        return request.getfixturevalue(request.param)
    root = tmp_path_factory.mktemp("run")
    views = "--model.test_time_augmentation=flip"
    fit(*TINY, *SLIM, views, f"--trainer.default_root_dir={root}", "--name=run")
    return root / "run"


@torch.no_grad()
def plain_loop(run: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and logits in double precision, of one image after the other."""
    model, data = opened(run)
    mean, std = (torch.tensor(model.preprocessing[name]).view(3, 1, 1) for name in ("mean", "std"))
    batch, logits = data.splits[split].__getitems__(list(range(len(data.splits[split])))), []
    for image in batch.images:
        flipped = split == "test" and model.test_time_augmentation
        views = [image, image.flip(2)] if flipped else [image]
        outputs = [model.network((view[None] / 255 - mean) / std)[0].double() for view in views]
        logits.append(torch.stack(outputs).mean(0))
    return batch.labels.numpy(), torch.stack(logits).numpy()


def by_hand(labels, logits, thresholds=0.5):
    """The metrics, and precision, recall, F1 and count of each class."""
    every = range(logits.shape[1])
    if labels.ndim == 2:
        probabilities = 1 / (1 + np.exp(-logits))
        predicted = (probabilities > thresholds).astype(int)
        pairs = zip(labels.T, probabilities.T, strict=True)
        loss = np.mean([sklearn.log_loss(true, shares, labels=(0, 1)) for true, shares in pairs])
        confusion = sklearn.multilabel_confusion_matrix(labels, predicted)
    else:
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        predicted = probabilities.argmax(1)
        loss = sklearn.log_loss(labels, probabilities, labels=every)
        confusion = sklearn.confusion_matrix(labels, predicted, labels=every)
    rates = sklearn.precision_recall_fscore_support(
        labels, predicted, labels=every, zero_division=0
    )
    names = ("precision", "recall", "f1", "total")
    metrics = {
        "loss": loss,
        "total": len(labels),
        "correct": int((predicted == labels).reshape(len(labels), -1).all(1).sum()),
        "accuracy": sklearn.accuracy_score(labels, predicted),
        "f1": sklearn.f1_score(labels, predicted, average="macro", zero_division=0),
        "confusion_matrix": confusion.tolist(),
        "per_class": [dict(zip(names, row, strict=True)) for row in zip(*rates, strict=True)],
    }
    if labels.ndim == 1 and len(every) > 5:
        metrics["top5"] = sklearn.top_k_accuracy_score(labels, logits, k=5, labels=every)
    return metrics


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_metrics_equal_a_plain_loop(run, command, split, tmp_path):
    require_as_a_plain_loop(run, command, split, tmp_path)


def require_as_a_plain_loop(run, command, split, tmp_path):
    (labels, logits), model = plain_loop(run, split), opened(run)[0]
    chosen = model.thresholds if split == "test" else None
    expected = by_hand(labels, logits, np.array([*chosen.values()]) if chosen else 0.5)
    classes = expected.pop("per_class")
    if command == "fit":
        results = read_json(run / "metrics.json")[split]
    else:
        options = [f"--split={split}", "--data.batch_size=7", f"--output={tmp_path / 'found.json'}"]
        evaluate(str(run / "checkpoints" / "best.ckpt"), *options)
        results = read_json(tmp_path / "found.json")
        for row, other in zip(results["per_class"].values(), classes, strict=True):
            assert {name: row[name] for name in other} == pytest.approx(other, rel=1e-9)
    assert results["confusion_matrix"] == expected.pop("confusion_matrix")
    expected = {name: value for name, value in expected.items() if name in results}
    assert {"loss", "accuracy"} <= expected.keys()
    assert {name: results[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)


def model_of(classes, cls=ImageClassifier):
    return cls(
        [f"class {at}" for at in range(classes)], PREPROCESSING, "tests.conftest.SmallNetwork"
    )


def predictions(classes, labels=None):
    """Random logits that favour the label a little, labels, and losses."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (200,), generator=generator) if labels is None else labels
    logits = torch.randn(200, classes, generator=generator) + 0.7 * F.one_hot(labels, classes)
    return logits, labels, F.cross_entropy(logits, labels, reduction="none")


def measure(*batches, cls=ImageClassifier):
    """The results of a set that comes in these batches."""
    logits, *_ = batches[0]
    model = model_of(logits.shape[1], cls)
    for batch in batches:
        model.measure("val", *batch)
    return model.val_metrics.compute_and_reset()


@pytest.mark.parametrize("classes", [2, 5, 6, 40])
@pytest.mark.parametrize("present", [1, 40])
def test_metrics_are_scikit_learns_with_some_classes_absent_too(classes, present):
    logits, labels, losses = predictions(classes, torch.arange(200) % min(present, classes))
    results = measure((logits, labels, losses))
    expected = by_hand(labels.numpy(), logits.double().numpy())
    names = {"accuracy", "loss", "f1", "top5"} & expected.keys() & results.keys()
    assert [results[name] for name in names] == pytest.approx(
        [expected[name] for name in names], rel=1e-6
    )
    assert all(results[name] == expected[name] for name in ("confusion_matrix", "correct", "total"))
    for row, other in zip(class_rates(results), expected["per_class"], strict=True):
        assert {name: row[name] for name in other} == pytest.approx(other)


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("size", [1, 64])
def test_neither_the_batches_nor_their_order_change_a_bit(classes, size):
    require_the_same_however_it_is_cut(predictions(classes), size)


def require_the_same_however_it_is_cut(batch, size, cls=ImageClassifier):
    for positions in (
        torch.arange(200),
        torch.randperm(200, generator=torch.Generator().manual_seed(1)),
    ):
        parts = [tuple(field[part] for field in batch) for part in positions.split(size)]
        assert measure(*parts, cls=cls) == measure(batch, cls=cls)


class Added(ImageClassifier):
    """Has metrics that agree on a first batch that is all correct, and a wrapper of one."""

    def configure_metrics(self):
        top = partial(MulticlassAccuracy, len(self.class_names), average="micro")
        each = ClasswiseWrapper(MulticlassRecall(len(self.class_names), average=None))
        return super().configure_metrics() | {
            "top1": top(top_k=1),
            "top2": top(top_k=2),
            "each": each,
            "auroc": MulticlassAUROC(len(self.class_names)),
        }


@pytest.mark.parametrize("size", [1, 3, 64])
def test_an_auroc_is_scikit_learns_however_the_set_is_cut(size):
    """torchmetrics takes logits for probabilities in a batch in which all lie between 0 and 1; metrics get probabilities."""
    labels = torch.arange(200) % 4
    logits, _, losses = predictions(4, labels)
    logits[:150] = logits[:150].sigmoid()  # many batches of these alone
    shares = logits.double().softmax(1).numpy()
    expected = sklearn.roc_auc_score(labels, shares, multi_class="ovr")
    parts = zip(*(field.split(size) for field in (logits, labels, losses)), strict=True)
    assert measure(*parts, cls=Added)["auroc"] == pytest.approx(expected, rel=1e-6)


def test_soft_labels_count_as_the_largest_share():
    logits, labels, losses = predictions(10)
    soft = 0.9 * F.one_hot(labels, 10) + 0.1 * F.one_hot(labels.roll(1, 0), 10)
    assert measure((logits, soft, losses)) == measure((logits, labels, losses))


def test_images_without_a_label_are_left_out_whatever_their_loss():
    require_unlabelled_left_out(predictions(10))


def require_unlabelled_left_out(batch, cls=ImageClassifier):
    unknown = torch.arange(200) % 3 == 0
    unknown[:64] = True
    spoilt = [field.clone() for field in batch]
    for field, value in zip(spoilt, (math.nan, -1, math.nan), strict=True):
        field[unknown] = value
    parts = zip(*(field.split(64) for field in spoilt), strict=True)  # of the first, none is left
    assert measure(*parts, cls=cls) == measure(tuple(field[~unknown] for field in batch), cls=cls)


@pytest.mark.parametrize(
    "value", [1e-4, 80.0, 1e5, 2.0**20, 2e6, -1e13, 3e38, math.inf, -math.inf, math.nan]
)
def test_the_loss_is_the_mean_in_double_precision_however_large_unless_one_is_not_finite(value):
    logits, labels, losses = predictions(10)
    for some in (torch.full((200,), value), losses.index_fill(0, torch.tensor([17]), value)):
        mean = float(some.double().mean()) if math.isfinite(value) else math.nan
        loss = measure((logits, labels, some))["loss"]
        assert loss == pytest.approx(mean, rel=1e-6, abs=5e-7, nan_ok=True)
    parts = zip(logits.split(7), labels.split(7), some.split(7), strict=True)
    assert measure(*parts)["loss"] == pytest.approx(loss, rel=0, abs=0, nan_ok=True)


def test_added_metrics_measure_the_same_images_and_are_not_merged_by_what_the_first_batch_shows():
    model = model_of(3, Added)
    assert default_mode(model, "val/top1") == "max"
    assert default_mode(model, "val/loss") == "min"
    logits = torch.tensor([[3.0, 2.0, 1.0]]).expand(2, 3)
    for labels in map(torch.tensor, ([0, 0], [1, 2], [-1, 0], [-1, -1])):
        model.measure("val", logits, labels, torch.zeros(2))
    results = model.val_metrics.compute_and_reset()
    recalls = {f"multiclassrecall_{label}": float(label == 0) for label in range(3)}
    assert {name: results[name] for name in recalls} == recalls
    assert (results["top1"], results["top2"]) == pytest.approx((3 / 5, 4 / 5))
    assert model.val_metrics.compute_and_reset() == {}
