"""Metrics that a subclass names are measured exactly, on any number of processes, and appear wherever metrics do."""

import json
import warnings

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import average_precision_score
from sklearn.preprocessing import label_binarize
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from project.analysis.tables import metrics_table
from project.data import SyntheticFlowersDataModule
from project.engine.errors import UserError
from project.engine.training.best_checkpoint import chosen_monitor
from project.model import ImageClassifier
from tests.distributed.job import classifier as fixed
from tests.distributed.job import flowers, quiet, trainer
from tests.distributed.job_evaluate import MeasuringClassifier
from tests.model.test_classifier import classifier

SIZE = 23


class Calibrated(ImageClassifier):
    def configure_metrics(self) -> dict[str, Metric]:
        return {"error": MulticlassCalibrationError(3)}


def by_hand(model: ImageClassifier) -> dict[str, float]:
    """Calibration error in a plain loop, average precision by scikit-learn, both in double precision."""
    data = flowers(1, SIZE, 4)
    data.setup("test")
    batch = data.splits["test"].__getitems__(list(range(SIZE)))
    with torch.no_grad():
        probabilities = model.eval()(batch.images).double().softmax(1).numpy()
    labels = batch.labels.numpy()
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == labels
    error = 0.0
    for low in np.linspace(0, 0.8, 5):
        within = (confidence > low) & (confidence <= low + 0.2)
        if within.any():
            error += within.mean() * abs(correct[within].mean() - confidence[within].mean())
    there = np.unique(labels)
    truth = label_binarize(labels, classes=range(len(model.class_names)))
    precision = average_precision_score(truth[:, there], probabilities[:, there], average="macro")
    return {"calibration_error": error, "average_precision": precision}


@pytest.fixture(scope="module")
def expected() -> dict[str, float]:
    return by_hand(fixed(MeasuringClassifier))


def test_they_are_what_a_plain_loop_and_scikit_learn_say(expected):
    """On several processes they are the same: see ``tests/distributed/test_exact_evaluation.py``."""
    model = fixed(MeasuringClassifier)
    for _ in range(2):  # the metrics of the first time must not count
        with warnings.catch_warnings():
            quiet()
            trainer(1).test(model, datamodule=flowers(1, SIZE, 4), verbose=False)
        found = model.results["test"].rates()
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)


def test_they_are_logged_printed_and_can_be_monitored():
    model = fixed(MeasuringClassifier)
    known = model.monitors()
    assert (known["val/calibration_error"], known["val/average_precision"]) == ("min", "max")
    assert chosen_monitor("val/calibration_error", None, known).mode == "min"
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    with warnings.catch_warnings():
        quiet()
        trainer.validate(model, datamodule=flowers(1, SIZE, 4), verbose=False)
    results = model.results["val"].as_dict()
    assert float(trainer.callback_metrics["val/average_precision"]) == pytest.approx(results["average_precision"])
    assert json.loads(json.dumps(results)) == results
    row = next(row for row in metrics_table({"validation": results}).splitlines() if "average_precision" in row)
    assert row.split() == ["average_precision", f"{results['average_precision']:.4f}"]


def test_images_that_another_process_counts_are_left_out():
    logits, labels = torch.randn(6, 3), torch.tensor([0, -1, 2, 1, -1, 0])
    model, kept = classifier(cls=Calibrated), MulticlassCalibrationError(3)
    model.measure("val", logits, labels, torch.zeros(6))
    model.measure("val", logits, torch.full((6,), -1), torch.zeros(6))
    kept.update(logits[labels >= 0], labels[labels >= 0])
    assert model.conclude("val").own["error"] == float(kept.compute())
    assert model.conclude("val") is None


def test_metrics_are_not_merged_by_what_the_first_batch_shows():
    class Two(ImageClassifier):
        def configure_metrics(self) -> dict[str, Metric]:
            return {f"top{k}": MulticlassAccuracy(3, top_k=k, average="micro") for k in (1, 2)}

    model = classifier(cls=Two)
    for labels in (torch.tensor([0, 0]), torch.tensor([1, 2])):  # the first is all correct by both
        model.measure("val", torch.tensor([[3.0, 2.0, 1.0]]).expand(2, 3), labels, torch.zeros(2))
    assert model.conclude("val").own == {"top1": 0.5, "top2": 0.75}


def test_a_name_that_is_taken_is_refused():
    class Taken(ImageClassifier):
        def configure_metrics(self) -> dict[str, Metric]:
            return {"loss": MeanMetric()}

    with pytest.raises(UserError, match="the name of a metric must be none of accuracy"):
        classifier(cls=Taken)


def test_a_metric_is_one_number():
    class Confusing(ImageClassifier):
        def configure_metrics(self) -> dict[str, Metric]:
            return {"each": MulticlassAccuracy(len(self.class_names), average="none")}

    data: SyntheticFlowersDataModule = flowers(1, 5, 4)
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    model = Confusing(data.class_names, data.preprocessing)
    with warnings.catch_warnings(action="ignore"), pytest.raises(UserError, match="'each' must be one number"):
        trainer.test(model, datamodule=data, verbose=False)
