"""Random numbers and the order of samples are functions of seed, epoch and place, the same on any number of devices."""

from functools import partial
from itertools import chain, product

import pytest
import torch
from lightkeeper.exact import uniform
from lightkeeper.exact._loader import EvaluationSampler, TrainingSampler, shuffled
from lightkeeper.exact._randomness import Purpose, derived_seed
from lightkeeper.images._batch import repeated_draw, weighted_draw

from tests.toy import cases

SEEDS = [0, 1, -1, 2**31, 2**63 - 1, -(2**63), 123456789]


def mix(x):
    """SplitMix64's step and finaliser, in Python's unbounded integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def by_hand(seed, epoch, index, purpose, draw_number):
    state = 0
    for part in (seed, epoch, purpose):
        state = mix((state + part) % 2**64)
    sample = mix((state + index) % 2**64)
    return (mix((sample + (draw_number + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 40) / 2**24


@pytest.mark.parametrize("seed", SEEDS)
def test_the_numbers_are_splitmix_in_64_bit_integers(seed):
    indices = torch.tensor([0, 1, 7, 60_000, 2**40])
    expected = [
        [by_hand(seed, 3, index, Purpose.CROP, k) for k in range(5)] for index in indices.tolist()
    ]
    assert uniform(seed, 3, indices, Purpose.CROP, 5).tolist() == expected


def test_no_two_places_seed_alike():
    seeds = [derived_seed(*place) for place in product(Purpose, (0, 1, 11), (0, 1, 11), (0, 1, 11))]
    assert len(set(seeds)) == len(seeds) == 27 * len(Purpose)


SIZE, BATCH = 50, 12
DRAWS = cases(
    "options",
    {},
    {
        "size": 96,
        "draw": partial(weighted_draw, torch.arange(96) % 4, torch.tensor([24] * 4), 12, 1.0, 0),
    },
    {"draw": partial(repeated_draw, partial(shuffled, SIZE, 0), SIZE, 3)},
    ids=["", "balanced", "repeated"],
)


def sampler(
    epoch=0, batches_done=0, *, world_size=1, rank=0, size=SIZE, batch_size=BATCH, seed=0, **options
):
    return TrainingSampler(
        size, batch_size, seed, lambda: (epoch, batches_done), world_size, rank, **options
    )


def keys(*args, **kwargs):
    return list(sampler(*args, **kwargs))


def batches(found, batch_size):
    return [sorted(found[start : start + batch_size]) for start in range(0, len(found), batch_size)]


@DRAWS
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize(("epoch", "done"), [(0, 0), (3, 0), (3, 2)])
def test_a_global_batch_is_the_same_on_any_number_of_devices(world_size, epoch, done, options):
    share = BATCH // world_size
    parts = [
        keys(epoch, done, world_size=world_size, rank=rank, **options) for rank in range(world_size)
    ]
    together = [
        sorted(chain(*part)) for part in zip(*(batches(part, share) for part in parts), strict=True)
    ]
    assert together == batches(keys(epoch, done, **options), BATCH)


@pytest.mark.parametrize(("size", "batch_size"), [(50, 10), (50, 12), (7, 7), (5, 1)])
@pytest.mark.parametrize("epoch", [0, 1, 1000])
def test_an_epoch_shows_no_sample_twice_and_fills_every_batch(size, batch_size, epoch):
    found = keys(epoch, size=size, batch_size=batch_size)
    assert {own for own, _ in found} == {epoch}
    indices = {index for _, index in found}
    assert len(indices) == len(found) == size // batch_size * batch_size
    assert indices <= set(range(size))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(index for _, index in keys(epoch, seed=seed))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


@pytest.mark.parametrize(("world_size", "rank"), [(1, 0), (2, 1), (3, 0), (6, 5)])
@pytest.mark.parametrize("done", range(SIZE // BATCH))
@DRAWS
def test_a_continued_epoch_is_exactly_the_rest_of_it(world_size, rank, done, options):
    one = sampler(4, world_size=world_size, rank=rank, **options)
    whole = list(one)
    assert len(one) == len(whole)  # of a whole epoch, wherever it starts
    assert (
        keys(4, done, world_size=world_size, rank=rank, **options)
        == whole[done * BATCH // world_size :]
    )


def shares(size, world_size):
    order = shuffled(size, seed=0, epoch=0)
    samplers = [EvaluationSampler(order, world_size, rank) for rank in range(world_size)]
    # the same on all, so that a fraction of the batches is
    assert {len(sampler) for sampler in samplers} == {-(-size // world_size)}
    return [list(sampler) for sampler in samplers]


@cases("world_size", 1, 2, 3, 5, 6)
def test_an_evaluation_has_every_image_once_and_starts_alike_on_any_number_of_devices(world_size):
    for size in range(world_size, 14):
        assert sorted(chain(*shares(size, world_size))) == list(range(size))
    (alone,) = shares(50, 1)
    first = [index for share in shares(50, world_size) for index in share[: 12 // world_size]]
    assert sorted(first) == sorted(alone[: len(first)])
