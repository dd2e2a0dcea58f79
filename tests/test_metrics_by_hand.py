"""Metrics of every command equal scikit-learn's on the probabilities of a plain loop, image by image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from project.analysis.evaluation import evaluate_split
from tests.conftest import SLIM, TINY, evaluate, fit, opened


@pytest.fixture(scope="module", params=["tiny_run", "multilabel", "two views"])
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


def by_hand(labels: np.ndarray, logits: np.ndarray, thresholds: Any = 0.5) -> dict[str, Any]:
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


def measured(run: Path, command: str, split: str, output: Path) -> dict[str, Any]:
    if command == "fit":
        return dict(json.loads((run / "metrics.json").read_text())[split])
    if command == "evaluate_split":
        return dict(evaluate_split(*opened(run), split).metrics)
    best = str(run / "checkpoints" / "best.ckpt")
    evaluate(best, f"--split={split}", "--data.batch_size=7", f"--output={output}")
    metrics = json.loads(output.read_text())
    return metrics | {"per_class": list(metrics["per_class"].values())}


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("command", ["fit", "evaluate", "evaluate_split"])
def test_metrics_equal_a_plain_loop(run, command, split, tmp_path):
    (labels, logits), model = plain_loop(run, split), opened(run)[0]
    chosen = model.thresholds if split == "test" else None
    expected = by_hand(labels, logits, np.array([*chosen.values()]) if chosen else 0.5)
    results = measured(run, command, split, tmp_path / "metrics.json")
    classes = expected.pop("per_class")
    if command == "evaluate":
        for row, other in zip(results["per_class"], classes, strict=True):
            assert {name: row[name] for name in other} == pytest.approx(other, rel=1e-9)
    assert results["confusion_matrix"] == expected.pop("confusion_matrix")
    assert {name: results[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
