import numpy as np
import pytest
import torch

from project.engine.randomness import Purpose, uniform

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


def test_a_samples_numbers_do_not_depend_on_its_batch_or_their_count():
    indices = torch.randperm(COUNT, generator=torch.Generator().manual_seed(0))
    whole = draw(count=3)
    assert torch.equal(draw(indices=indices, count=3), whole[indices])
    assert torch.equal(draw(count=8)[:, :3], whole)
    assert torch.equal(torch.cat([draw(indices=part, count=3) for part in torch.arange(COUNT).split(7)]), whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_uniform_from_0_to_below_1(seed):
    numbers = draw(seed=seed, count=2).double()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for column in numbers.T:  # Kolmogorov and Smirnov, at one in a thousand
        ideal = (torch.arange(COUNT) + 0.5) / COUNT
        assert (column.sort().values - ideal).abs().max() < 1.95 / COUNT**0.5


@pytest.mark.parametrize(
    "changed",
    [
        *({"seed": seed} for seed in SEEDS[1:]),
        {"epoch": 1},
        {"epoch": 1000},
        *({"purpose": purpose} for purpose in Purpose if purpose != Purpose.FLIP),
        {"indices": torch.arange(COUNT) + 1},
        {"indices": torch.arange(COUNT) + COUNT},
    ],
    ids=str,
)
def test_any_other_argument_gives_unrelated_numbers(changed):
    require_unrelated(draw()[:, 0], draw(**changed)[:, 0])


def test_the_numbers_of_one_sample_are_unrelated():
    numbers = draw(count=4)
    for first in range(4):
        for second in range(first):
            require_unrelated(numbers[:, first], numbers[:, second])


def require_unrelated(first, second):
    assert (first == second).float().mean() < 0.01
    assert abs(np.corrcoef(first.numpy(), second.numpy())[0, 1]) < 4 / COUNT**0.5
