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

BATCHNORM = "network.stem.1.running_mean"
WORLD_SIZES = [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3, 5))]


@pytest.fixture(scope="module", params=WORLD_SIZES, ids=lambda number: f"{number} processes")
def world_size(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def found(world_size, tmp_path_factory) -> dict[str, Any]:
    """What that many processes measured, in one launch."""
    out = tmp_path_factory.mktemp("evaluation")
    launch = forked if world_size == 2 else torchrun  # which takes seconds longer
    succeed(launch(world_size, "tests.distributed.job_evaluate", str(out)), cwd=out, timeout=240)
    measured = json.loads((out / f"{world_size}.json").read_text())
    names = {"weights": f"{world_size}.pt", "weights within a step": "within.pt"}
    return measured | {name: torch.load(out / file, weights_only=True) for name, file in names.items()}


@cache
def on_one_process(size: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        quiet()
        return job_evaluate.evaluate(classifier(), size, 1)


def require_equal(measured, expected, splits=("val", "test")):
    for split in splits:
        assert measured[split]["loss"] == pytest.approx(expected[split]["loss"], rel=1e-5)
        for name, value in expected[split].items():
            assert name == "loss" or measured[split][name] == value, (split, name)


def test_sets_of_every_size_have_the_same_figures_as_on_one_process(found, world_size):
    assert [int(size) for size in found["exact"]] == job_evaluate.sizes(world_size)
    for size, measured in found["exact"].items():
        require_equal(measured, on_one_process(int(size)))


def test_every_image_is_counted_once(found):
    for size, measured in found["exact"].items():
        for split in ("val", "test"):
            assert measured[split]["total"] == int(size) == sum(map(sum, measured[split]["confusion_matrix"]))


def test_validation_inside_fit_and_the_test_after_it_are_exact_too(found):
    model = classifier()
    model.load_state_dict(found["weights"])
    assert not torch.equal(found["weights"][BATCHNORM], classifier().state_dict()[BATCHNORM])  # it did train
    with warnings.catch_warnings():
        quiet()
        expected = job_evaluate.evaluate(model, job_evaluate.FIT_SIZE, 1)
    require_equal(found["fit"], expected)


def test_validation_within_a_step_of_several_batches_is_exact_too(found):
    model = classifier()
    model.load_state_dict(found["weights within a step"])
    assert not torch.equal(found["weights within a step"][BATCHNORM], classifier().state_dict()[BATCHNORM])
    with warnings.catch_warnings():
        quiet()
        expected = job_evaluate.evaluate(model, job_evaluate.FIT_SIZE, 1)
    require_equal(found["within a step"], expected, splits=["val"])


def test_predictions_have_each_image_once(found, world_size):
    assert found["predicted"] == {str(size): size for size in (world_size, 7, 12)}


def test_a_padding_sampler_would_have_reported_other_metrics(found, world_size):
    wrong = 0
    for size, counts in found["padded"].items():
        exact = found["exact"][size]["test"]
        divides = int(size) % world_size == 0
        assert (counts["total"] == exact["total"]) == divides
        wrong += counts["correct"] / counts["total"] != exact["accuracy"]
    assert (wrong > 0) == (world_size > 1)


def test_the_predictions_are_of_several_classes():
    confusion = torch.tensor(on_one_process(23)["test"]["confusion_matrix"])
    assert (confusion.sum(0) > 0).sum() >= 3
    assert 0 < confusion.diagonal().sum() < 23
