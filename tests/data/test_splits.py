"""Splits: of a dataset that stays as it is, by exact shares; of a class that grows, by the files' own names."""

import random
from functools import cache
from hashlib import blake2b
from itertools import chain

import pytest

from project.engine.errors import UserError
from project.engine.loading.splits import cut_groups, hashed_split, stratified_split

FRACTIONS = {"test": 0.1, "val": 0.1}
WIDE = {"test": 0.4, "val": 0.3}
CLASSES = ["daisy", "rose", "tulip"]


@pytest.mark.parametrize("fractions", [{}, {"val": 0.1}, WIDE, {"val": 0.05, "test": 0.9}], ids=str)
@pytest.mark.parametrize("counts", [(40,), (10, 35, 101), (200, 9, 3)], ids=str)
def test_every_class_gives_its_share_to_every_split_and_one_image_at_least(counts, fractions):
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    parts = stratified_split(labels, fractions, 0, CLASSES)
    assert list(parts) == ["train", *fractions]
    assert sorted(chain(*parts.values())) == list(range(len(labels)))
    for label, count in enumerate(counts):
        found = {split: sum(labels[at] == label for at in part) for split, part in parts.items()}
        assert all(found.values())
        for split, fraction in fractions.items() if count > 30 else ():
            assert abs(found[split] - fraction * count) <= 1
    seeds = [stratified_split(labels, fractions, seed, CLASSES) for seed in (0, 1, -1)]
    assert seeds[0] == parts
    assert not fractions or seeds[0] != seeds[1] != seeds[2]


@pytest.mark.parametrize(
    ("count", "fractions"), [(2, FRACTIONS), (1, FRACTIONS), (1, {"val": 0.1})]
)
def test_a_class_with_too_few_images_is_named(count, fractions):
    with pytest.raises(UserError, match=rf"'rose' has {count} images"):
        stratified_split([0] * 10 + [1] * count, fractions, 0, CLASSES)
    wanted = (
        rf"class 'daisy' has {count} images or groups, too few for the {len(fractions) + 1} splits"
    )
    with pytest.raises(UserError, match=wanted):
        places([f"{number}.jpg" for number in range(count)], fractions=fractions)


def places(names, seed=0, fractions=FRACTIONS):
    """The split of each file of a class that can grow."""
    found = hashed_split(names, fractions, seed, "daisy")
    return {names[position]: split for split, positions in found.items() for position in positions}


def own_place(name, seed=0, fractions=FRACTIONS):
    """The split that the hash of a name alone says."""
    hashed = int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) / 2**64
    return (
        "test"
        if hashed < fractions["test"]
        else "val"
        if hashed < sum(fractions.values())
        else "train"
    )


def shuffled_names(count, seed):
    names = [f"daisy/{number}.jpg" for number in range(count)]
    random.Random(seed).shuffle(names)
    return names


@cache
def grown(seed, fractions):
    """A class of three files and more, up to forty, which come in any order."""
    names = shuffled_names(40, seed)
    return [places(names[:size], seed, dict(fractions)) for size in range(3, 41)]


@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE], ids=str)
@pytest.mark.parametrize("added", [1, 2, 5, 20])
def test_only_files_that_stood_in_move_when_others_are_added(fractions, added):
    """From test to train in the smallest classes alone, as the documentation says; nothing where each split has its own."""
    left = settled = 0
    for seed in range(150):
        seen = grown(seed, tuple(fractions.items()))
        for before, after in zip(seen, seen[added:], strict=False):
            own = {name: own_place(name, seed, fractions) for name in before}
            moved = {
                name: {before[name], after[name]} for name in before if before[name] != after[name]
            }
            assert all(before[name] != own[name] for name, both in moved.items() if "test" in both)
            left += any(before[name] == "test" and after[name] == "train" for name in moved)
            if added == 1:
                assert len(moved) <= 2
                assert {"test", "train"} not in moved.values()
            if {*own.values()} == {"train", "val", "test"}:
                settled += 1
                assert before == own
                assert not moved
    assert settled > (2000 if added == 1 else 1000)
    assert left or added == 1 or fractions == WIDE


@pytest.mark.parametrize(
    "fractions", [FRACTIONS, WIDE, {"test": 0.05, "val": 0.9}, {"val": 0.1}], ids=str
)
def test_a_class_that_grows_has_an_image_in_every_split(fractions):
    for seed in range(50):
        for count in range(len(fractions) + 1, 41):
            assert set(places(shuffled_names(count, seed), seed, fractions).values()) == {
                "train",
                *fractions,
            }


@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE, {"test": 0.2, "val": 0.3}], ids=str)
@pytest.mark.parametrize("fold", [None, 1, 4])
def test_a_split_of_many_is_that_of_a_plain_loop(fractions, fold):
    names = shuffled_names(5000, seed=7)
    if fold is not None:
        fractions = {**fractions, "test": 0.2}
    ends = {"test": fractions["test"], "val": sum(fractions.values())}
    expected: dict[str, list[int]] = {"test": [], "val": [], "train": []}
    for position, name in enumerate(names):
        hashed = (
            int.from_bytes(blake2b(f"3/{name}".encode(), digest_size=8).digest()) // 2**11 / 2**53
        )
        rank = (hashed - 0.2 * ((fold or 1) - 1)) % 1.0
        split = next((split for split, end in ends.items() if rank < end), "train")
        expected[split].append(position)
    if fold is None:
        assert hashed_split(names, fractions, 3, "daisy") == expected
    parts = cut_groups({"daisy": names}, fractions, 3, fold or 1, 1 if fold is None else 5)
    assert {split: part["daisy"] for split, part in parts.items()} == expected
