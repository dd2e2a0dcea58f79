import random
from collections import Counter

import pytest

from project.data.splits import stratified_split
from project.engine.errors import UserError

FRACTIONS = {"val": 0.1, "test": 0.2}
CLASSES = ["daisy", "rose", "tulip"]


def samples(*counts):
    return [(f"{CLASSES[label]}/{number}.jpg", label) for label, count in enumerate(counts) for number in range(count)]


def split(pairs, fractions=FRACTIONS, seed=0):
    """The names in each split."""
    names, labels = [name for name, _ in pairs], [label for _, label in pairs]
    positions = stratified_split(names, labels, fractions, seed=seed, class_names=CLASSES)
    return {name: [names[position] for position in chosen] for name, chosen in positions.items()}


def place_of(splits):
    return {name: split_name for split_name, names in splits.items() for name in names}


@pytest.mark.parametrize("fractions", [{}, {"val": 0.1}, FRACTIONS, {"val": 0.5, "test": 0.4}], ids=str)
@pytest.mark.parametrize("counts", [(40,), (10, 35, 101), (200, 9, 6)], ids=str)
def test_every_sample_lands_in_exactly_one_split(counts, fractions):
    pairs = samples(*counts)
    splits = split(pairs, fractions)
    assert list(splits) == ["train", *fractions]
    assert sorted(name for names in splits.values() for name in names) == sorted(name for name, _ in pairs)


def test_positions_are_ascending():
    positions = stratified_split(["c", "a", "d", "b"] * 5, [0, 1] * 10, FRACTIONS, seed=0, class_names=CLASSES)
    assert all(chosen == sorted(chosen) for chosen in positions.values())


@pytest.mark.parametrize("fractions", [{"val": 0.1}, FRACTIONS, {"val": 0.25, "test": 0.25}], ids=str)
def test_every_class_gives_its_share_to_every_split(fractions):
    counts = (15, 40, 101)
    splits = split(samples(*counts), fractions)
    for name, fraction in fractions.items():
        given = Counter(sample.split("/")[0] for sample in splits[name])
        for class_name, count in zip(CLASSES, counts, strict=True):
            assert abs(given[class_name] - fraction * count) <= 0.5


@pytest.mark.parametrize(
    "fractions", [{"val": 0.1, "test": 0.1}, {"val": 0.4, "test": 0.4}, {"val": 0.05, "test": 0.9}], ids=str
)
def test_every_split_has_every_class(fractions):
    for count in range(3, 30):
        sizes = {name: len(chosen) for name, chosen in split(samples(count), fractions).items()}
        assert min(sizes.values()) > 0, sizes


def test_the_order_of_listing_does_not_matter():
    pairs = samples(30, 20, 50)
    shuffled = random.Random(0).sample(pairs, len(pairs))
    assert place_of(split(pairs)) == place_of(split(shuffled))


def test_another_seed_gives_another_split():
    pairs = samples(50, 50)
    places = [place_of(split(pairs, seed=seed)) for seed in (0, 0, 1, -1)]
    assert places[0] == places[1]
    assert places[0] != places[2] != places[3] != places[0]


def test_each_sample_is_held_out_as_often_as_any_other():
    pairs = samples(20)
    held_out = Counter(name for seed in range(500) for name in split(pairs, {"val": 0.25}, seed)["val"])
    assert set(held_out) == {name for name, _ in pairs}
    assert all(abs(times - 125) < 5 * (500 * 0.25 * 0.75) ** 0.5 for times in held_out.values())


@pytest.mark.parametrize(("count", "fractions"), [(2, FRACTIONS), (1, FRACTIONS), (1, {"val": 0.1})])
def test_a_class_with_too_few_images_is_named(count, fractions):
    with pytest.raises(UserError, match=rf"'rose' has {count} image"):
        split(samples(10, count, 10), fractions)
