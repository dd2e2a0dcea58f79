"""Evaluates sets of many sizes on all processes that were launched; the first writes down the metrics."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import distributed
from torch.optim import SGD
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAveragePrecision, MulticlassCalibrationError

from project.callbacks import ConfidentMistakesPlot
from project.data import ImageDataModule
from project.model import ImageClassifier
from tests.distributed.job import classifier, flowers, trainer
from tests.drawn import flowers_drawn_once

TRAIN_SIZE, FIT_SIZE, MISTAKES = 80, 13, 5


class MeasuringClassifier(ImageClassifier):
    """Measures how well it is calibrated and how well it ranks, by metrics of its own."""

    def configure_metrics(self) -> dict[str, Metric]:
        classes = len(self.class_names)
        return {
            "calibration_error": MulticlassCalibrationError(classes, n_bins=5),
            "average_precision": MulticlassAveragePrecision(classes, thresholds=None),
        }


def sizes(world_size: int) -> list[int]:
    """Sets smaller than the number of processes, and sets that divide by it and do not."""
    return sorted({1, 2, max(1, world_size - 1), world_size, world_size + 1, 7, 12, 23})


def data_of(size: int, world_size: int) -> ImageDataModule:
    """A set of that size; several batches a process where it is large enough."""
    return flowers(TRAIN_SIZE, size, 4 if 4 % world_size == 0 else world_size)


def metrics(model: ImageClassifier, split: str) -> dict[str, Any]:
    """All that was measured."""
    measured = model.results[split]
    return {**measured.as_dict(), "per_class": measured.per_class}


def evaluate(model: ImageClassifier, size: int, world_size: int) -> dict[str, Any]:
    """The metrics of ``validate`` and ``test``."""
    found = {}
    for split, method in {"val": "validate", "test": "test"}.items():
        getattr(trainer(world_size), method)(model, datamodule=data_of(size, world_size), verbose=False)
        found[split] = metrics(model, split)
    return found


class Measured(Callback):
    """Keeps the first process's weights as they are measured."""

    def __init__(self) -> None:
        self.weights: dict[str, dict[str, torch.Tensor]] = {}

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        split = "test" if trainer.testing else "val"
        self.weights[split] = {name: value.clone() for name, value in pl_module.state_dict().items()}

    on_test_end = on_validation_end


def fit_and_evaluate(world_size: int, weights: Path) -> dict[str, Any]:
    """Validation in the middle of the second step, and the test after it; BatchNorm's statistics differ by process."""
    model, measured = classifier(MeasuringClassifier, optimizer=partial(SGD, lr=0.01)), Measured()
    data = flowers(TRAIN_SIZE, FIT_SIZE, 4 * world_size)
    steps = {"limit_train_batches": 4, "accumulate_grad_batches": 2, "val_check_interval": 3}
    one = trainer(world_size, callbacks=[measured], **steps)
    one.fit(model, datamodule=data)
    one.test(model, datamodule=data, verbose=False)
    if one.is_global_zero:
        torch.save(measured.weights, weights)
    return {split: metrics(model, split) for split in ("val", "test")}


def mistakes(model: ImageClassifier, size: int, world_size: int) -> list[str]:
    """The titles of the most confident mistakes, as they are drawn."""
    figures: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("project.callbacks.figures.tensorboards", lambda _: True)
        patch.setattr("project.callbacks.figures.add_figure", lambda *args: figures.append(args[2]))
        one = trainer(world_size, callbacks=[ConfidentMistakesPlot(MISTAKES)])
        one.test(model, datamodule=data_of(size, world_size), verbose=False)
    return [axes.get_title() for figure in figures for axes in figure.axes]


def predicted(model: ImageClassifier, size: int, world_size: int) -> int:
    """Counts the predictions that all processes together return."""
    found = trainer(world_size).predict(model, datamodule=data_of(size, world_size)) or []
    count = torch.tensor(sum(map(len, found)))
    if world_size > 1:
        distributed.all_reduce(count)
    return int(count)


@flowers_drawn_once()
def main(out: Path) -> None:
    """Runs the job."""
    world_size, model = int(os.environ.get("WORLD_SIZE", "1")), classifier()
    found = {
        "exact": {size: evaluate(model, size, world_size) for size in sizes(world_size)},
        "mistakes": {size: mistakes(model, size, world_size) for size in (1, 23)},
        "predicted": {size: predicted(model, size, world_size) for size in (world_size, 7, 12)},
        "fit": fit_and_evaluate(world_size, out / "weights.pt"),
    }
    if os.environ.get("RANK", "0") == "0":
        (out / "metrics.json").write_text(json.dumps(found))
