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


def batches(ranks: list[dict[str, Any]], run: str) -> list[tuple[dict[str, Any], ...]]:
    """Each batch as all processes saw it."""
    return list(zip(*(rank[run]["batches"] for rank in ranks), strict=True))


def images(parts: tuple[dict[str, Any], ...]) -> dict[int, int]:
    return {index: checksum for part in parts for index, checksum in part["images"].items()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return sum(float((one[name].double() - other[name].double()).norm()) for name in one)


@same_runs
def test_every_global_batch_holds_the_same_images_augmented_to_the_same_pixels(one, two, run):
    alone, together = batches(one, run), batches(two, run)
    assert len(alone) == len(together) == 2 * job_train.STEPS_PER_EPOCH
    for whole, parts in zip(alone, together, strict=True):
        assert [len(part["images"]) for part in parts] == [job_train.BATCH_SIZE // 2] * 2
        assert images(parts) == images(whole)
        assert {part["step"] for part in parts} == {whole[0]["step"]}
        assert {part["lr"] for part in parts} == {whole[0]["lr"]}  # no rule scales it by the number of processes


@same_runs
def test_losses_agree_step_by_step_and_training_ends_in_the_same_weights(one, two, run):
    (alone,), (first, second) = one, two
    assert len(alone[run]["losses"]) == 2 * job_train.STEPS_PER_EPOCH // (2 if run == "accumulated" else 1)
    assert first[run]["losses"] == pytest.approx(alone[run]["losses"], rel=1e-4)
    assert distance(first[run]["after"], second[run]["after"]) == 0
    moved = distance(alone[run]["before"], alone[run]["after"])
    assert moved > 0.01
    assert distance(first[run]["after"], alone[run]["after"]) < 1e-2 * moved


def test_accumulation_sends_gradients_with_the_last_batch_of_a_step_only(two):
    for rank in two:
        for run, expected in {"plain": [True, True], "accumulated": [False, True]}.items():
            counts = [batch["travels"] for batch in rank[run]["batches"]]
            sent = [after > before for before, after in zip([0, *counts], counts, strict=False)]
            assert sent == expected * job_train.STEPS_PER_EPOCH
