"""Evaluation counts every image once, on any number of processes."""

import json
import warnings
from functools import cache
from typing import Any

import pytest
import torch

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


def test_the_most_confident_mistakes_are_those_of_one_process(found):
    with warnings.catch_warnings():
        quiet()
        expected = {size: job_evaluate.mistakes(classifier(), int(size), 1) for size in found["mistakes"]}
    assert found["mistakes"] == expected
    assert len(expected["23"]) == job_evaluate.MISTAKES


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
