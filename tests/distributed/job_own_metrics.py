"""Measures metrics of a subclass's own on all processes that torchrun has started; the first writes them down.

Argument: the file.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAveragePrecision, MulticlassCalibrationError

from project.model import ImageClassifier
from tests.distributed.job import NETWORK, classifier, flowers, trainer

SIZE = 23  # which neither 2 nor 3 processes share evenly


class MeasuringClassifier(ImageClassifier):
    """Measures how well it is calibrated and how well it ranks."""

    def configure_metrics(self) -> dict[str, Metric]:
        classes = len(self.class_names)
        return {
            "calibration_error": MulticlassCalibrationError(classes, n_bins=5),
            "average_precision": MulticlassAveragePrecision(classes, thresholds=None),
        }


def build() -> MeasuringClassifier:
    """The classifier with fixed weights."""
    known = classifier()
    model = MeasuringClassifier(known.class_names, known.preprocessing, **NETWORK)
    model.load_state_dict(known.state_dict())
    return model


def measure(model: MeasuringClassifier, world_size: int) -> list[dict[str, float]]:
    """The metrics of the test set, measured twice: what was measured before must not count."""
    one = trainer(world_size)
    found = []
    for _ in range(2):
        data = flowers(1, SIZE, 4 if world_size % 2 == 0 else world_size)
        one.test(model, datamodule=data, verbose=False)
        found.append(model.results["test"].rates())
    return found


if __name__ == "__main__":
    measured = measure(build(), int(os.environ["WORLD_SIZE"]))
    if int(os.environ["RANK"]) == 0:
        Path(sys.argv[1]).write_text(json.dumps(measured))
    torch.distributed.barrier()
