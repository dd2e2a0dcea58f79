"""Metrics of every command equal scikit-learn's on the probabilities of a plain loop, image by image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torchmetrics.classification import MulticlassCalibrationError, MulticlassCohenKappa

from project.analysis.evaluation import evaluate_split
from project.model import ImageClassifier
from tests.conftest import QUIET, SLIM, TINY_DATA, TINY_TRAINER, evaluate, fit, make_folder, opened

RATES = ("precision", "recall", "f1", "total")


class Scored(ImageClassifier):
    def configure_metrics(self):
        classes = len(self.class_names)
        return super().configure_metrics() | {
            "kappa": MulticlassCohenKappa(classes),
            "calibration": MulticlassCalibrationError(classes, n_bins=5),
        }


RUNS = {
    "flowers in two views": [*TINY_DATA, "--model.test_time_augmentation=flip"],
    "folder with own metrics": [
        "--data=images",
        "--data.image_size=32",
        f"--model={Scored.__module__}.Scored",
    ],
}


@pytest.fixture(scope="module", params=["tiny_run", "multilabel", *RUNS])
def run(request, tmp_path_factory):
    if request.param not in RUNS:
        yield request.getfixturevalue(request.param)
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("run"))
        make_folder(Path("images"), dict.fromkeys("abcdefgh", 12))
        fit(
            *RUNS[request.param], *TINY_TRAINER, *QUIET, *SLIM, "--data.num_workers=0", "--name=run"
        )
        yield Path("runs/run").resolve()


@torch.no_grad()
def plain_loop(run: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and logits in double precision, of one image after the other."""
    model, data = opened(run)
    mean, std = (torch.tensor(model.preprocessing[name]).view(3, 1, 1) for name in ("mean", "std"))
    batch, logits = data.splits[split].__getitems__(list(range(len(data.splits[split])))), []
    for image in batch.images:
        views = (
            [image, image.flip(2)] if split == "test" and model.test_time_augmentation else [image]
        )
        outputs = [model.network((view[None] / 255 - mean) / std)[0].double() for view in views]
        logits.append(torch.stack(outputs).mean(0))
    return batch.labels.numpy(), torch.stack(logits).numpy()


def by_hand(labels: np.ndarray, logits: np.ndarray, thresholds: Any = 0.5) -> dict[str, Any]:
    """The metrics, and precision, recall, F1 and count of each class."""
    every = range(logits.shape[1])
    if labels.ndim == 2:
        probabilities = 1 / (1 + np.exp(-logits))
        predicted = (probabilities > thresholds).astype(int)
        losses = [
            sklearn.log_loss(labels[:, at], probabilities[:, at]) for at in range(labels.shape[1])
        ]
        confusion: Any = sklearn.multilabel_confusion_matrix(labels, predicted)
        found = {
            "loss": np.mean(losses),
            "mAP": sklearn.average_precision_score(labels, probabilities),
        }
    else:
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        predicted, confidence = probabilities.argmax(1), probabilities.max(1)
        correct, bins = predicted == labels, np.ceil(5 * confidence)
        gaps = [abs((correct - confidence)[bins == at].sum()) / len(labels) for at in range(1, 6)]
        confusion = sklearn.confusion_matrix(labels, predicted, labels=every)
        found = {
            "loss": sklearn.log_loss(labels, probabilities, labels=every),
            "top5": sklearn.top_k_accuracy_score(labels, logits, k=5, labels=every)
            if len(every) > 5
            else 1.0,
            "kappa": sklearn.cohen_kappa_score(labels, predicted)
            if len({*labels, *predicted}) > 1
            else 0.0,
            "calibration": sum(gaps),
        }
    each = np.stack(
        sklearn.precision_recall_fscore_support(labels, predicted, labels=every, zero_division=0),
        axis=1,
    )
    return found | {
        "total": len(labels),
        "correct": int((predicted == labels).reshape(len(labels), -1).all(1).sum()),
        "accuracy": sklearn.accuracy_score(labels, predicted),
        "f1": sklearn.f1_score(labels, predicted, average="macro", zero_division=0),
        "confusion_matrix": confusion.tolist(),
        "per_class": [dict(zip(RATES, row, strict=True)) for row in each.tolist()],
    }


def measured(run: Path, command: str, split: str, output: Path) -> dict[str, Any]:
    if command == "fit":
        return dict(json.loads((run / "metrics.json").read_text())[split])
    if command == "evaluate_split":
        return dict(evaluate_split(*opened(run), split).metrics)
    best = str(run / "checkpoints" / "best.ckpt")
    evaluate(best, f"--split={split}", "--data.batch_size=7", f"--output={output}")
    found = json.loads(output.read_text())
    return found | {"per_class": list(found["per_class"].values())}


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("command", ["fit", "evaluate", "evaluate_split"])
def test_metrics_equal_a_plain_loop(run, request, command, split, tmp_path):
    (labels, logits), model = plain_loop(run, split), opened(run)[0]
    chosen = model.thresholds if split == "test" else None
    thresholds: Any = np.array(list(chosen.values())) if chosen else 0.5
    expected = by_hand(labels, logits, thresholds)
    found = measured(run, command, split, tmp_path / "found.json")
    assert found["confusion_matrix"] == expected.pop("confusion_matrix")
    for mine, other in zip(
        found.pop("per_class", []), expected.pop("per_class"), strict=command == "evaluate"
    ):
        assert mine.pop("threshold", None) in (None, *np.atleast_1d(thresholds))
        assert mine == pytest.approx(other, rel=1e-9)
    if "own metrics" not in request.node.name:
        expected = {
            name: value for name, value in expected.items() if name not in ("kappa", "calibration")
        }
    if "mAP" in expected:  # probabilities may be equal in float32 and not in float64
        assert found["mAP"] == pytest.approx(expected.pop("mAP"), abs=2e-3)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
