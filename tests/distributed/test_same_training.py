"""Training is the same on one process and on two: batches, augmentation, losses, weights."""

import json
import warnings
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.distributed import job_train
from tests.distributed.job import quiet
from tests.distributed.processes import forked, succeed

SAME_RUNS = ["plain", "accumulated", "whitened"]


class Seen(NamedTuple):
    """What each process of a launch saw, and the last weights of each run."""

    ranks: list[dict[str, Any]]
    weights: list[dict[str, dict[str, Tensor]]]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Seen:
    """All runs on two processes, in one launch."""
    out = tmp_path_factory.mktemp("two")
    succeed(forked(2, "tests.distributed.job_train", str(out)), cwd=out)
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return Seen(ranks, [torch.load(out / f"rank{rank}.pt", weights_only=True) for rank in range(2)])


@pytest.fixture(scope="module")
def one() -> Seen:
    """All runs on one process: this one."""
    with warnings.catch_warnings():
        quiet()
        found = {name: job_train.run(1, options) for name, options in job_train.RUNS.items()}
    as_json = json.loads(json.dumps({name: seen for name, (seen, _) in found.items()}))
    return Seen([as_json], [{name: weights for name, (_, weights) in found.items()}])


def shares(seen: Seen, run: str) -> list[tuple[dict[str, Any], ...]]:
    """Each batch as all processes saw it."""
    return list(zip(*(rank[run]["batches"] for rank in seen.ranks), strict=True))


def images(parts: tuple[dict[str, Any], ...]) -> dict[str, int]:
    return {index: checksum for part in parts for index, checksum in part["images"].items()}


@pytest.mark.parametrize("run", SAME_RUNS)
def test_every_global_batch_holds_the_same_images_augmented_to_the_same_pixels(one, two, run):
    alone, together = shares(one, run), shares(two, run)
    assert len(alone) == len(together) == 2 * job_train.STEPS_PER_EPOCH
    for whole, parts in zip(alone, together, strict=True):
        assert [len(part["images"]) for part in parts] == [job_train.BATCH_SIZE // 2] * 2
        assert images(parts) == images(whole)
        assert {part["step"] for part in parts} == {whole[0]["step"]}


def test_pixels_change_from_epoch_to_epoch(one):
    first, second = (shares(one, "plain")[i : i + job_train.STEPS_PER_EPOCH] for i in (0, job_train.STEPS_PER_EPOCH))
    before = {index: checksum for parts in first for index, checksum in images(parts).items()}
    after = {index: checksum for parts in second for index, checksum in images(parts).items()}
    common = before.keys() & after.keys()
    assert sum(before[index] == after[index] for index in common) < len(common) / 4


@pytest.mark.parametrize("run", SAME_RUNS)
def test_losses_agree_step_by_step(one, two, run):
    alone, together = one.ranks[0][run]["losses"], two.ranks[0][run]["losses"]
    assert len(alone) == 2 * job_train.STEPS_PER_EPOCH // (2 if run == "accumulated" else 1)
    assert together == pytest.approx(alone, rel=1e-4)
    assert len(set(alone.values())) == len(alone)


@pytest.mark.parametrize("run", SAME_RUNS)
def test_training_ends_in_the_same_weights(one, two, run):
    (alone,), (first, second) = one.weights, two.weights
    for name, value in first[run].items():
        assert torch.equal(value, second[run][name]), name
    moved = sum(one.ranks[0][run]["moved"].values())
    assert moved > 0.01
    assert sum(job_train.distance(first[run][name], value) for name, value in alone[run].items()) < 1e-2 * moved


def test_accumulation_sends_gradients_with_the_last_batch_of_a_step_only(two):
    for rank in two.ranks:
        counts = [batch["travels"] for batch in rank["accumulated"]["batches"]]
        sent = [after > before for before, after in zip([0, *counts], counts, strict=False)]
        assert sent == [False, True] * job_train.STEPS_PER_EPOCH
        plain = [batch["travels"] for batch in rank["plain"]["batches"]]
        assert all(after > before for before, after in zip([0, *plain], plain, strict=False))


@pytest.mark.parametrize("seen", ["one", "two"])
def test_the_rate_is_scaled_by_the_global_batch_and_only_when_asked(seen, request):
    (rank, *_) = request.getfixturevalue(seen).ranks
    assert rank["plain"]["batches"][0]["lr"] == 0.001


def test_the_linear_rule_reproduces_the_rate_times_world_size_of_the_tutorials(two):
    # there each of the two processes has a batch of base_batch_size
    for rank in two.ranks:
        assert rank["linear_rule"]["batches"][0]["lr"] == 0.001 * 2


def test_a_frozen_backbone_trains_its_head_alone_and_nobody_warns_of_unused_parameters(one, two):
    for rank in [*one.ranks, *two.ranks]:
        moved = {name for name, distance in rank["head"]["moved"].items() if distance > 0}
        assert moved == {"network.fc.weight", "network.fc.bias"}
        assert not rank["head"]["backbone_moved"]
    for rank in two.ranks:
        assert not [text for text in rank["head"]["warnings"] if "unused" in text or "find_unused" in text]
    (alone,), (first, second) = one.weights, two.weights
    for name in ("network.fc.weight", "network.fc.bias"):
        assert torch.equal(first["head"][name], second["head"][name])
        assert torch.allclose(first["head"][name], alone["head"][name], atol=1e-5)
