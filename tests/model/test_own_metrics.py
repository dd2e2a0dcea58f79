"""Metrics that a subclass names; that they are exact is tested in tests/test_metrics_by_hand.py and tests/distributed."""

import warnings

import pytest
import torch
from lightning.pytorch import Trainer
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

from project.data import SyntheticFlowersDataModule
from project.engine.errors import UserError
from project.model import ImageClassifier
from tests.distributed.job import classifier as fixed
from tests.distributed.job import flowers
from tests.distributed.job_evaluate import MeasuringClassifier
from tests.model.test_classifier import classifier


class Calibrated(ImageClassifier):
    def configure_metrics(self) -> dict[str, Metric]:
        return {"error": MulticlassCalibrationError(3)}


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


def test_their_mode_is_known():
    known = fixed(MeasuringClassifier).monitors()
    assert (known["val/calibration_error"], known["val/average_precision"]) == ("min", "max")


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
