"""Evaluation counts every image once, on any number of processes."""

import os
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed
from torch.optim import SGD
from torchmetrics.classification import MulticlassAveragePrecision, MulticlassCalibrationError

from project.callbacks import ConfidentMistakesPlot
from project.model import ImageClassifier
from tests.conftest import flowers_drawn_once
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import forked, succeed, torchrun

WORLD_SIZES = [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3, 5))]
TRAIN_SIZE, FIT_SIZE, MISTAKES = 80, 13, 5


class MeasuringClassifier(ImageClassifier):
    """Measures how well it is calibrated and how well it ranks, by metrics of its own."""

    def configure_metrics(self):
        calibration = MulticlassCalibrationError(len(self.class_names), n_bins=5)
        ranking = MulticlassAveragePrecision(len(self.class_names), thresholds=None)
        return {"calibration_error": calibration, "average_precision": ranking}


def sizes(world_size):
    """Sets smaller than the number of processes, and sets that divide by it and do not."""
    return sorted({1, 2, max(1, world_size - 1), world_size, world_size + 1, 7, 12, 23})


def data_of(size, world_size):
    """Several batches a process where the set is large enough."""
    return flowers(TRAIN_SIZE, size, 4 if 4 % world_size == 0 else world_size)


def metrics(model):
    return {split: {**found.as_dict(), "per_class": found.per_class} for split, found in model.results.items()}


def evaluated(model, size, world_size):
    trainer(world_size).validate(model, datamodule=data_of(size, world_size), verbose=False)
    trainer(world_size).test(model, datamodule=data_of(size, world_size), verbose=False)
    return metrics(model)


class Measured(Callback):
    """Keeps the first process's weights as they are measured."""

    def __init__(self):
        self.weights: dict[str, dict[str, torch.Tensor]] = {}

    def on_validation_end(self, trainer, pl_module):
        split = "test" if trainer.testing else "val"
        self.weights[split] = {name: value.clone() for name, value in pl_module.state_dict().items()}

    on_test_end = on_validation_end


def fit_and_evaluate(world_size, broadcast_buffers):
    """Validation in the middle of the second step, and the test after it; BatchNorm's statistics differ by process."""
    strategy: Any = DDPStrategy(broadcast_buffers=broadcast_buffers) if world_size > 1 else "auto"
    model, measured = classifier(MeasuringClassifier, optimizer=partial(SGD, lr=0.01)), Measured()
    data = flowers(TRAIN_SIZE, FIT_SIZE, 4 * world_size)
    steps = {"limit_train_batches": 4, "accumulate_grad_batches": 2, "val_check_interval": 3}
    one = trainer(world_size, callbacks=[measured], strategy=strategy, **steps)
    one.fit(model, datamodule=data)
    one.test(model, datamodule=data, verbose=False)
    return {split: (found, measured.weights[split]) for split, found in metrics(model).items()}


def collectives(model, world_size):
    """How often a validation adds up and gathers, from its start on."""
    spies = [patch.object(distributed, name, wraps=getattr(distributed, name)) for name in ("all_reduce", "all_gather")]
    with spies[0] as sums, spies[1] as gathers:
        trainer(world_size).validate(model, datamodule=data_of(12, world_size), verbose=False)
    return [sums.call_count, gathers.call_count]


def mistakes(model, size, world_size):
    """The titles of the most confident mistakes, as they are drawn."""
    figures: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("project.callbacks.figures.tensorboards", lambda _: True)
        patch.setattr("project.callbacks.figures.add_figure", lambda *args: figures.append(args[2]))
        one = trainer(world_size, callbacks=[ConfidentMistakesPlot(MISTAKES)])
        one.test(model, datamodule=data_of(size, world_size), verbose=False)
    return [axes.get_title() for figure in figures for axes in figure.axes]


def predicted(model, size, world_size):
    """How many predictions all processes together return."""
    found: Any = trainer(world_size).predict(model, datamodule=data_of(size, world_size))
    count = torch.tensor(sum(map(len, found)))
    if world_size > 1:
        distributed.all_reduce(count)
    return int(count)


@flowers_drawn_once()
def evaluate(out):
    """Evaluates sets of many sizes on all processes that were launched; the first writes down the metrics."""
    world_size, model = int(os.environ.get("WORLD_SIZE", "1")), classifier()
    found = {
        "exact": {size: evaluated(model, size, world_size) for size in sizes(world_size)},
        "mistakes": {size: mistakes(model, size, world_size) for size in (1, 23)},
        "collectives": collectives(model, world_size),
        "predicted": {size: predicted(model, size, world_size) for size in (world_size, 7, 12)},
        "fit": {
            broadcast_buffers: fit_and_evaluate(world_size, broadcast_buffers) for broadcast_buffers in (True, False)
        },
    }
    if os.environ.get("RANK", "0") == "0":
        torch.save(found | {"world_size": world_size}, out / "found.pt")


@pytest.fixture(scope="module", params=WORLD_SIZES, ids=lambda number: f"{number} processes")
def found(request, tmp_path_factory):
    """The results of so many processes, in one launch."""
    out, world_size = tmp_path_factory.mktemp("evaluation"), request.param
    by_torchrun = torchrun(world_size, *forked(1, evaluate, out)[2:])  # which takes seconds longer
    succeed(by_torchrun if world_size == 3 else forked(world_size, evaluate, out), cwd=out, timeout=240)
    return torch.load(out / "found.pt", weights_only=True)


@cache
def on_one_process(size):
    return evaluated(classifier(), size, 1)


def require_equal(measured, expected):
    for name, value in expected.items():
        rounded = name in ("loss", "calibration_error", "average_precision")
        assert measured[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if rounded else value), name


def test_sets_of_every_size_have_the_same_metrics_as_on_one_process(found):
    assert list(found["exact"]) == sizes(found["world_size"])
    for size, measured in found["exact"].items():
        for split in ("val", "test"):
            require_equal(measured[split], on_one_process(size)[split])
            assert measured[split]["total"] == size == sum(map(sum, measured[split]["confusion_matrix"]))
    assert found["predicted"] == {size: size for size in (found["world_size"], 7, 12)}
    # at the start, for whether anything was measured, and for all counts at once
    assert found["collectives"] == ([3, 0] if found["world_size"] > 1 else [0, 0])


def test_the_most_confident_mistakes_are_those_of_one_process(found):
    expected = {size: mistakes(classifier(), size, 1) for size in found["mistakes"]}
    assert found["mistakes"] == expected
    assert len(expected[23]) == MISTAKES


@pytest.mark.parametrize("broadcast_buffers", [True, False])
def test_validation_within_a_step_of_fit_and_the_test_after_it_are_exact_too(found, broadcast_buffers):
    """BatchNorm's statistics differ by process then: those of the first count."""
    for split, (measured, weights) in found["fit"][broadcast_buffers].items():
        model = classifier(MeasuringClassifier)
        statistics = "network.stem.1.running_mean"
        assert not torch.equal(weights[statistics], model.state_dict()[statistics])  # it did train
        model.load_state_dict(weights)
        require_equal(measured, evaluated(model, FIT_SIZE, 1)[split])
