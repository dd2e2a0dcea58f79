"""What is drawn in a step depends on where the step is, not on what came before."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from project.callbacks import SeedEachBatch

PLACE = {"seed": 0, "epoch": 3, "batch": 5, "rank": 1}


@pytest.fixture(autouse=True)
def own_generator():
    with torch.random.fork_rng([]):
        yield


def draws(seed: int, epoch: int, batch: int, rank: int) -> list[float]:
    trainer: Any = SimpleNamespace(current_epoch=epoch, global_rank=rank)
    SeedEachBatch(seed).on_train_batch_start(trainer, None, None, batch)  # type: ignore[arg-type]
    return torch.rand(8).tolist()


@pytest.mark.parametrize("before", [lambda: torch.manual_seed(7), lambda: torch.rand(1000), lambda: draws(1, 1, 1, 1)])
def test_a_step_draws_the_same_whatever_came_before(before):
    expected = draws(**PLACE)
    before()
    assert draws(**PLACE) == expected


def test_no_two_places_draw_alike():
    places = [(seed, epoch, batch, rank) for seed in (0, 1, 11) for epoch in (0, 1, 11) for batch in (0, 1, 11)
              for rank in (0, 1, 2)]  # fmt: skip
    assert len({tuple(draws(*place)) for place in places}) == len(places)
