"""Evaluation counts every image once, on any number of processes."""

import json
import warnings
from functools import cache
from typing import Any

import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score

from tests.distributed import job_evaluate
from tests.distributed.job import classifier, quiet
from tests.distributed.processes import forked, succeed, torchrun

WORLD_SIZES = [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3, 5))]


@pytest.fixture(scope="module", params=WORLD_SIZES, ids=lambda number: f"{number} processes")
def world_size(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def found(world_size, tmp_path_factory) -> dict[str, Any]:
    """The results of so many processes, in one launch."""
    out = tmp_path_factory.mktemp("evaluation")
    by_torchrun = torchrun(world_size, "tests.distributed.jobs", "evaluate", str(out))  # which takes seconds longer
    succeed(by_torchrun if world_size == 3 else forked(world_size, "evaluate", out), cwd=out, timeout=240)
    weights = torch.load(out / "weights.pt", weights_only=True)
    return json.loads((out / "metrics.json").read_text()) | {"weights": weights}


@cache
def on_one_process(size: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        quiet()
        return job_evaluate.evaluate(classifier(), size, 1)


def require_equal(measured: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        rounded = name in ("loss", "calibration_error", "average_precision")
        assert measured[name] == (pytest.approx(value, rel=1e-5, abs=1e-6) if rounded else value), name


def test_sets_of_every_size_have_the_same_metrics_as_on_one_process(found, world_size):
    assert [int(size) for size in found["exact"]] == job_evaluate.sizes(world_size)
    for size, measured in found["exact"].items():
        for split in ("val", "test"):
            require_equal(measured[split], on_one_process(int(size))[split])
            assert measured[split]["total"] == int(size) == sum(map(sum, measured[split]["confusion_matrix"]))


def test_metrics_are_those_of_scikit_learn(found):
    size, model = 23, classifier()
    data = job_evaluate.data_of(size, 1)
    data.setup("test")
    batch = data.splits["test"].__getitems__(list(range(size)))
    with torch.no_grad():
        confidence, predicted = model.eval()(batch.images).softmax(1).max(1)
    assert len(predicted.unique()) >= 3
    labels, measured = range(len(model.class_names)), found["exact"]["23"]["test"]
    assert measured["confusion_matrix"] == confusion_matrix(batch.labels, predicted, labels=labels).tolist()
    assert measured["correct"] == int((predicted == batch.labels).sum())
    wrong = (predicted != batch.labels).nonzero().flatten().tolist()
    surest, names = sorted(wrong, key=lambda index: -confidence[index])[: job_evaluate.MISTAKES], model.class_names
    assert found["mistakes"]["23"] == [
        f"{names[predicted[index]]} {confidence[index]:.0%}\nis {names[batch.labels[index]]}" for index in surest
    ]
    assert len(found["mistakes"]["1"]) == 1 - found["exact"]["1"]["test"]["correct"]
    per_class = f1_score(batch.labels, predicted, labels=labels, average=None, zero_division=0)
    assert [row["f1"] for row in measured["per_class"]] == pytest.approx(per_class, abs=1e-6)


def test_validation_within_a_step_of_fit_and_the_test_after_it_are_exact_too(found):
    """BatchNorm's statistics differ by process then: those of the first count."""
    for split, weights in found["weights"].items():
        model = classifier(job_evaluate.MeasuringClassifier)
        statistics = "network.stem.1.running_mean"
        assert not torch.equal(weights[statistics], model.state_dict()[statistics])  # it did train
        model.load_state_dict(weights)
        with warnings.catch_warnings():
            quiet()
            expected = job_evaluate.evaluate(model, job_evaluate.FIT_SIZE, 1)
        require_equal(found["fit"][split], expected[split])


def test_predictions_have_each_image_once(found, world_size):
    assert found["predicted"] == {str(size): size for size in (world_size, 7, 12)}
