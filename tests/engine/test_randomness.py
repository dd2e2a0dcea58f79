"""Random numbers are a function of their place, equal to another implementation's, and unrelated elsewhere."""

import itertools

import numpy as np
import pytest
import torch

from project.engine.randomness import Purpose, derived_seed, uniform
from tests.conftest import cases

COUNT = 4000
SEEDS = [0, 1, -1, 2**31, 2**63 - 1, -(2**63), 123456789]


def draw(*, seed=0, epoch=0, indices=None, purpose=Purpose.FLIP, count=1):
    return uniform(seed, epoch, torch.arange(COUNT) if indices is None else indices, purpose, count)


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
    expected = [[by_hand(seed, 3, index, Purpose.CROP, k) for k in range(5)] for index in indices.tolist()]
    assert draw(seed=seed, epoch=3, indices=indices, purpose=Purpose.CROP, count=5).tolist() == expected


@cases(
    "changed",
    *({"seed": seed} for seed in SEEDS[1:]),
    {"epoch": 1},
    {"purpose": Purpose.CROP},
    {"indices": torch.arange(COUNT) + 1},
)
def test_numbers_are_uniform_and_any_other_argument_gives_unrelated_ones(changed):
    numbers, others = draw(count=2).double(), draw(**changed, count=2).double()
    ideal = (torch.arange(COUNT) + 0.5) / COUNT
    for column in others.T:  # Kolmogorov and Smirnov, at one in a thousand
        assert (column.sort().values - ideal).abs().max() < 1.95 / COUNT**0.5
    for first, second in ((numbers[:, 0], others[:, 0]), (others[:, 0], others[:, 1])):
        assert (first == second).float().mean() < 0.01
        assert abs(np.corrcoef(first.numpy(), second.numpy())[0, 1]) < 4 / COUNT**0.5


def test_no_two_places_seed_alike():
    places = itertools.product(Purpose, (0, 1, 11), (0, 1, 11), (0, 1, 11))
    seeds = [derived_seed(*place) for place in places]
    assert len(set(seeds)) == len(seeds) == 27 * len(Purpose)
