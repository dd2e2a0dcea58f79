"""Splits: by hashes of the names of files or of their groups."""

import random
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pytest
from lightkeeper.exact import UserError
from lightkeeper.images._splits import grouped_split

from tests.image_files import write_folder
from tests.stubs import Files, Table, cases

FRACTIONS = {"test": 0.1, "val": 0.1}
WIDE = {"test": 0.4, "val": 0.3}
SPLITS = {"train", "val", "test"}


def split_of(names, seed=0, fractions=FRACTIONS):
    """The split of each file of a class that can grow."""
    splits = grouped_split(["daisy"] * len(names), names, fractions, seed)
    return dict(zip(names, splits, strict=True))


def own_place(name, seed=0, fractions=FRACTIONS, start=0.0):
    """The split that the hash of a name alone says, by a plain rule."""
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    rank = (int.from_bytes(digest) // 2**11 / 2**53 - start) % 1.0
    ends = {"test": fractions["test"], "val": sum(fractions.values())}
    return next((split for split, end in ends.items() if rank < end), "train")


def shuffled_names(count, seed):
    names = [f"daisy/{number}.jpg" for number in range(count)]
    random.Random(seed).shuffle(names)
    return names


@cache
def grown(seed, fractions):
    """A class of three files and more, up to forty, which come in any order."""
    names = shuffled_names(40, seed)
    return [split_of(names[:size], seed, dict(fractions)) for size in range(3, 41)]


@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE], ids=str)
@pytest.mark.parametrize("added", [1, 2, 5, 20])
def test_only_files_that_stood_in_move_when_others_are_added(fractions, added):
    """Nothing moves where each split has files of its own."""
    settled = 0
    for seed in range(150):
        seen = grown(seed, tuple(fractions.items()))
        for before, after in zip(seen, seen[added:], strict=False):
            assert {*before.values()} == SPLITS
            own = {name: own_place(name, seed, fractions) for name in before}
            moved = {
                name: {before[name], after[name]} for name in before if before[name] != after[name]
            }
            assert all(before[name] != own[name] for name, both in moved.items() if "test" in both)
            if added == 1:
                assert len(moved) <= 2
                assert {"test", "train"} not in moved.values()
            if {*own.values()} == SPLITS:
                settled += 1
                assert before == own
                assert not moved
    assert settled > (2000 if added == 1 else 1000)


@pytest.mark.parametrize("fractions", [FRACTIONS, WIDE, {"test": 0.2, "val": 0.3}], ids=str)
@pytest.mark.parametrize(("fold", "folds"), [(1, 1), (1, 5), (4, 5)])
def test_a_split_of_many_is_that_of_a_plain_rule(fractions, fold, folds):
    names = shuffled_names(5000, seed=7)
    shares = fractions if folds == 1 else fractions | {"test": 1 / folds}
    expected = [own_place(name, 3, shares, start=(fold - 1) / folds) for name in names]
    assert grouped_split(["daisy"] * 5000, names, shares, 3, fold, folds) == expected


def drawn(seed, groups, shared=0.3):
    """The labels and groups of images of three classes, of which some groups have two."""
    dice = random.Random(seed)
    images = []
    for number in range(groups):
        names = dice.sample("abc", 2 if dice.random() < shared else 1)
        images += [(dice.choice(names), f"group {number}") for _ in range(dice.randrange(1, 9))]
    return images


def cut(images, seed, fractions=FRACTIONS, **folds):
    """The splits of images; each class has images in each split, and no group is divided."""
    labels, groups = zip(*images, strict=True)
    splits = grouped_split(labels, groups, fractions, seed, **folds)
    assert {*zip(labels, splits, strict=True)} == {(a, b) for a in {*labels} for b in SPLITS}
    split_of = dict(zip(groups, splits, strict=True))
    assert [split_of[group] for group in groups] == splits
    return splits


@pytest.mark.parametrize("seed", range(20))
def test_groups_that_classes_share_stay(seed):
    images = drawn(seed, 400)
    more = images + random.Random(seed).sample(images, 15)
    more += [(label, f"new {group}") for label, group in drawn(seed + 100, 60)]
    assert cut(more, seed)[: len(images)] == cut(images, seed)


@pytest.mark.parametrize("seed", range(5))
def test_ten_groups_of_a_class_have_images_in_every_split_of_every_fold(seed):
    images = [(name, f"{name}{at // 4}") for name in "abcde" for at in range(40)]
    folds = [cut(images, seed, {"test": 0.2, "val": 0.1}, fold=at, folds=5) for at in range(1, 6)]
    assert all(column.count("test") == 1 for column in zip(*folds, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_three_groups_are_enough_and_small_classes_alone_move_when_groups_are_added(seed):
    dice = random.Random(seed)
    images = [(name, f"{name}{at}") for name in "abc" for at in range(dice.randrange(3, 30))]
    after = cut([*images, *(("c", f"new {at}") for at in range(9))], seed)[: len(images)]
    moved = zip(images, cut(images, seed), after, strict=True)
    assert {label for (label, _), old, new in moved if old != new} <= {"c"}


def test_a_class_without_a_group_of_its_own_in_a_split_is_an_error():
    images = [
        *(("a", f"a{at}") for at in range(3)),
        *(("b", f"b{at}") for at in range(3)),
        ("a", "b0"),
    ]
    with pytest.raises(UserError, match=r"'[ab]' has no image in \w+, as it shares its groups"):
        _ = [cut(images, seed) for seed in range(60)]  # with others, it is in each split


PATTERN = "image ([0-9]+)"


def test_groups_of_a_folder_and_a_csv_are_cut_alike(tmp_path):
    root = write_folder(tmp_path, {"a": 30, "b": 20})
    files = Files(str(root), group=PATTERN, split_seed=9).files()
    photo = {file.path: Path(file.path).stem.removeprefix("image ") for file in files}
    assert len({(photo[file.path], file.split) for file in files}) == 30
    rows = [
        f"{Path(file.path).relative_to(root)},{file.label},{photo[file.path]}" for file in files
    ]
    (root / "labels.csv").write_text("\n".join(["path,label,photo", *rows]))
    for options in ({"group": "photo"}, {"group": PATTERN, "label_from": "([^/]+)/"}):
        of_csv = Table(str(root / "labels.csv"), **options, split_seed=9)
        assert of_csv.files() == files


@pytest.mark.parametrize("group", [None, PATTERN])
@pytest.mark.parametrize("folds", [2, 5])
def test_over_the_folds_each_image_is_tested_once_and_stays_where_it_is(tmp_path, group, folds):
    def folds_of_all():
        modules = (
            Files(str(tmp_path), group=group, folds=folds, fold=fold, split_seed=6)
            for fold in range(1, folds + 1)
        )
        return [{file.path: file.split for file in module.files()} for module in modules]

    write_folder(tmp_path, {"a": 40, "b": 30})
    before = folds_of_all()
    tested = [path for fold in before for path, split in fold.items() if split == "test"]
    assert sorted(tested) == sorted(map(str, tmp_path.rglob("*.jpg")))
    write_folder(tmp_path, {"a": 43})
    assert all(old.items() <= new.items() for old, new in zip(before, folds_of_all(), strict=True))


@cases(
    "folders options message",
    ({}, {"folds": 1}, "folds: must be at least 2, got 1"),
    ({}, {"folds": 10**20}, f"class 'a' has 9 images or groups, too few for {10**20} folds"),
    ({}, {"folds": 3, "fold": 4}, "fold: must be at most folds, 3, got 4"),
    ({}, {"train_fraction": 0}, r"train_fraction: must be in \(0, 1\], got 0"),
    ({}, {"fold": 2}, "fold: must be at most folds, 1, got 2"),
    ({}, {"group": "image ([0-9]+)_"}, r"'image \(\[0-9\]\+\)_' finds nothing in 'a/image"),
    ({}, {"group": "image("}, r"'image\(' is no regular expression"),
    ({}, {"group": "image"}, "class 'a' has 1 images or groups, too few for the 3 splits"),
    ({"test/a": 2}, {"folds": 2}, "folds: each fold cuts a test set, but '.*' has one already"),
    ({"test/a": 2}, {"group": PATTERN}, "group: '0' has images in test and train"),
)
def test_folds_groups_and_shares_that_cannot_be_are_refused(tmp_path, folders, options, message):
    train = "train/" if folders else ""
    write_folder(tmp_path, {f"{train}a": 9, f"{train}b": 9, **folders})
    with pytest.raises(UserError, match=message):
        Files(str(tmp_path), **options).files()
