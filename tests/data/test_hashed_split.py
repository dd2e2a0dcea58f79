"""A class that grows: where its files go, by their own names."""

import random
from functools import cache
from hashlib import blake2b

import pytest

from project.data.splits import hashed_split
from project.engine.errors import UserError

FRACTIONS = {"test": 0.1, "val": 0.1}
WIDE = {"test": 0.4, "val": 0.3}


def places(names, seed=0, fractions=FRACTIONS):
    """The split of each file."""
    found = hashed_split(names, fractions, seed=seed, class_name="daisy")
    return {names[position]: split for split, positions in found.items() for position in positions}


def own_place(name, seed=0, fractions=FRACTIONS):
    """Where the hash of a name alone puts it."""
    hashed = int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) / 2**64
    return "test" if hashed < fractions["test"] else "val" if hashed < sum(fractions.values()) else "train"


def shuffled_names(count, seed):
    names = [f"daisy/{number}.jpg" for number in range(count)]
    random.Random(seed).shuffle(names)
    return names


def growing(seed, count, fractions=FRACTIONS, added=1):
    """What a class of three files and more looks like before and after so many more files, which come in any order."""
    seen = grown(seed, count, tuple(fractions.items()))
    return zip(seen, seen[added:], strict=False)


@cache
def grown(seed, count, fractions):
    """Where the files of a class are, for each number of them."""
    names = shuffled_names(count, seed)
    return [places(names[:size], seed, dict(fractions)) for size in range(3, count + 1)]


def complete(found, seed, fractions=FRACTIONS):
    """Whether every split has a file of its own."""
    return {own_place(name, seed, fractions) for name in found} == {"train", "val", "test"}


@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE], ids=str)
def test_one_added_file_moves_two_others_at_most_and_none_between_test_and_train(fractions):
    for seed in range(150):
        for before, after in growing(seed, 40, fractions):
            assert sum(before[name] != after[name] for name in before) <= 2
            assert not any({before[name], after[name]} == {"test", "train"} for name in before)


@pytest.mark.parametrize("added", [2, 5, 20])
@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE], ids=str)
def test_however_many_are_added_only_a_file_that_stood_in_leaves_test_or_enters_it(fractions, added):
    left = 0
    for seed in range(150):
        for before, after in growing(seed, 40, fractions, added):
            for name in before:
                if before[name] != after[name] and "test" in (before[name], after[name]):
                    assert before[name] != own_place(name, seed, fractions)
                    left += (before[name], after[name]) == ("test", "train")
    assert left or fractions is WIDE  # from the smallest classes, as the documentation says


def test_once_every_split_has_a_file_of_its_own_nothing_moves_any_more():
    settled = 0
    for seed in range(150):
        for before, after in growing(seed, 40):
            if complete(before, seed):
                settled += 1
                assert before == {name: own_place(name, seed) for name in before}
                assert all(after[name] == place for name, place in before.items())
    assert settled > 2000


def test_files_that_are_added_to_classes_of_a_hundred_move_nothing():
    for seed in range(20):
        names = shuffled_names(112, seed)
        before, after = places(names[:100], seed), places(names, seed)
        assert all(after[name] == place for name, place in before.items())


@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE, {"test": 0.05, "val": 0.9}, {"val": 0.1}], ids=str)
def test_a_class_has_an_image_in_every_split(fractions):
    for seed in range(100):
        for count in range(len(fractions) + 1, 41):
            assert set(places(shuffled_names(count, seed), seed, fractions).values()) == {"train", *fractions}


def test_shares_are_about_the_fractions():
    counts = [list(places(shuffled_names(1000, seed), seed, WIDE).values()) for seed in range(20)]
    for split, fraction in WIDE.items():
        held_out = sum(found.count(split) for found in counts)
        assert abs(held_out - 20_000 * fraction) < 5 * (20_000 * fraction * (1 - fraction)) ** 0.5


def test_a_file_goes_to_test_whatever_the_share_of_validation():
    names = shuffled_names(300, 0)
    first, second = (places(names, fractions={"test": 0.1, "val": share}) for share in (0.1, 0.3))
    assert {name for name in names if first[name] == "test"} == {name for name in names if second[name] == "test"}


def test_order_does_not_matter_and_seeds_do():
    names = shuffled_names(60, 0)
    assert places(names) == places(sorted(names))
    assert places(names) != places(names, seed=1)


def test_a_class_with_fewer_files_than_splits_is_named():
    with pytest.raises(UserError, match=r"'daisy' has 2 image\(s\), too few for the 3 splits"):
        places(["a", "b"])
