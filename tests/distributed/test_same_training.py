"""Training is the same on one process and on two: batches, augmentation, losses, weights."""

import warnings
from typing import Any

import pytest
import torch

from tests.distributed import job_train
from tests.distributed.job import quiet
from tests.distributed.processes import forked, succeed

same_runs = pytest.mark.parametrize("run", ["plain", "accumulated", "whitened"])


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict[str, Any]]:
    """All runs as each of two processes saw them."""
    out = tmp_path_factory.mktemp("two")
    succeed(forked(2, "train", out), cwd=out)
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def one() -> list[dict[str, Any]]:
    """All runs in this process alone."""
    with warnings.catch_warnings():
        quiet()
        return [{name: job_train.run(1, **options) for name, options in job_train.RUNS.items()}]


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(float((one[name].double() - other[name].double()).norm()) for name in one)


@same_runs
def test_every_global_batch_holds_the_same_images_augmented_to_the_same_pixels(one, two, run):
    whole, first, second = (rank[run]["batches"] for rank in (*one, *two))
    assert len(whole) == 2 * job_train.STEPS_PER_EPOCH
    for batch, *parts in zip(whole, first, second, strict=True):
        assert [len(part["images"]) for part in parts] == [job_train.BATCH_SIZE // 2] * 2
        assert parts[0]["images"] | parts[1]["images"] == batch["images"]
        for name in ("step", "lr"):  # no rule scales the learning rate by the number of processes
            assert parts[0][name] == parts[1][name] == batch[name]


@same_runs
def test_losses_agree_step_by_step_and_training_ends_in_the_same_weights(one, two, run):
    alone, first, second = (rank[run] for rank in (*one, *two))
    assert len(alone["losses"]) == 2 * job_train.STEPS_PER_EPOCH // (2 if run == "accumulated" else 1)
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert distance(first["after"], second["after"]) == 0
    moved = distance(alone["before"], alone["after"])
    assert moved > 0.01
    assert distance(first["after"], alone["after"]) < 1e-2 * moved
