"""``--data.group``: images of one group are in one split, whatever else is in the data set."""

import contextlib
import json
import random
import re
from collections import defaultdict
from itertools import chain
from typing import Any

import pytest

from project import check_data
from project.data import CSVDataModule, FolderDataModule
from project.engine.errors import UserError
from project.engine.loading.splits import cut_groups, hashed_split
from tests.conftest import call, cases
from tests.engine.loading.image_files import noise

FRACTIONS = {"test": 0.2, "val": 0.2}
PATTERN = "site([0-9]+)"


def drawn(seed, groups, shared=0.3):
    """The groups of the images of three classes, of which some have images of two."""
    dice = random.Random(seed)
    found: dict[str, list[str]] = {name: [] for name in "abc"}
    for number in range(groups):
        names = dice.sample("abc", 2 if dice.random() < shared else 1)
        for _ in range(dice.randrange(1, 9)):
            found[dice.choice(names)].append(f"group {number}")
    return found


def places(groups, parts):
    found = defaultdict(set)
    for split, classes in parts.items():
        for name, positions in classes.items():
            for position in positions:
                found[groups[name][position]].add(split)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_divided_or_moves_no_image_is_lost_and_classes_get_about_their_shares(seed):
    groups = drawn(seed, 400)
    parts = cut_groups(groups, FRACTIONS, seed)
    before = places(groups, parts)
    assert {len(splits) for splits in before.values()} == {1}
    for name, members in groups.items():
        assert sorted(at for split in parts for at in parts[split][name]) == list(
            range(len(members))
        )
        for split, fraction in FRACTIONS.items():
            assert abs(len(parts[split][name]) / len(members) - fraction) < 0.12
    more = {
        name: members + random.Random(seed).sample(members, 5) for name, members in groups.items()
    }
    for name, members in drawn(seed + 100, 60).items():
        more[name] += [f"new {group}" for group in members]
    after = places(more, cut_groups(more, FRACTIONS, seed))
    assert {group: after[group] for group in before} == before


def images(root, name, site, count):
    (root / name).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        noise(20, 20, seed=number).save(root / name / f"site{site}_{number}.jpg")


@pytest.fixture
def root(tmp_path):
    for site in range(12):
        images(tmp_path / "images", "ab"[site % 2], site, 4)
    images(tmp_path / "images", "a", 1, 2)  # a site of both classes
    return tmp_path / "images"


def sites(files):
    names = {
        split: [file.name for part in classes.values() for file in part]
        for split, classes in files.items()
    }
    return {
        split: {re.findall("site([0-9]+)_", name)[0] for name in part}
        for split, part in names.items()
    }


def test_a_folder_and_a_csv_are_cut_alike(root):
    data = FolderDataModule(str(root), group=PATTERN, split_seed=9)
    found = sites(data.files())
    assert all(found.values())
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 12
    rows = [
        f"{file.relative_to(root)},{file.parent.name},{file.name[4:].split('_')[0]}"
        for file in root.rglob("*.*")
    ]
    (root / "labels.csv").write_text("\n".join(["path,label,site", *rows]))
    of_csv = CSVDataModule(str(root / "labels.csv"), group="site", split_seed=9).files()
    for split, classes in data.files().items():
        assert {name: sorted(files) for name, files in classes.items()} == {
            n: [*f] for n, f in of_csv[split].items()
        }


def test_check_data_counts_groups(root, capsys):
    args = [str(root), f"--group={PATTERN}", "--split_seed=9", f"--output={root / 'found.json'}"]
    assert call(check_data, *args) == 0
    assert json.loads((root / "found.json").read_text())["groups"] == 12
    printed = capsys.readouterr().out
    assert "12, each in one split" in printed
    assert "--data.group 'site([0-9]+)'" in printed


def require_all(groups, parts):
    """Each class has images in each split, none is lost, and no group is divided."""
    for name, members in groups.items():
        assert all(parts[split][name] for split in ("train", "val", "test"))
        assert sorted(chain(*(of[name] for of in parts.values()))) == list(range(len(members)))
    assert {len(splits) for splits in places(groups, parts).values()} == {1}


@pytest.mark.parametrize("seed", range(5))
def test_fifty_groups_of_five_classes_have_images_in_every_split_of_every_fold(seed):
    groups = {name: [f"{name}{at // 4}" for at in range(40)] for name in "abcde"}
    folds = [cut_groups(groups, {"test": 0.2, "val": 0.1}, seed, at, 5) for at in range(1, 6)]
    for parts in folds:
        require_all(groups, parts)
    for name in groups:
        assert sorted(chain(*(parts["test"][name] for parts in folds))) == list(range(40))


@pytest.mark.parametrize("seed", range(60))
def test_three_groups_are_enough_and_small_classes_alone_move_when_groups_are_added(seed):
    dice = random.Random(seed)
    groups = {name: [f"{name}{at}" for at in range(dice.randrange(3, 30))] for name in "abc"}
    before = cut_groups(groups, {"test": 0.1, "val": 0.1}, seed)
    require_all(groups, before)
    alone = hashed_split(groups["c"], {"test": 0.1, "val": 0.1}, seed, "c")
    assert {split: part["c"] for split, part in before.items()} == alone  # cut as files are
    more = groups | {"c": [*groups["c"], *(f"new {at}" for at in range(9))]}
    after = cut_groups(more, {"test": 0.1, "val": 0.1}, seed)
    for name in "ab":
        assert {split: of[name] for split, of in after.items()} == {
            split: of[name] for split, of in before.items()
        }


def test_a_class_without_a_group_of_its_own_in_a_split_is_an_error():
    groups = {"a": ["b0", "a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}
    whole = 0
    for seed in range(60):
        with contextlib.suppress(UserError):  # or it is in each split
            require_all(groups, cut_groups(groups, {"test": 0.1, "val": 0.1}, seed))
            whole += 1
    assert 40 < whole < 60


@pytest.mark.parametrize("group", [None, PATTERN])
@pytest.mark.parametrize("folds", [2, 5])
def test_over_the_folds_each_image_is_tested_once_and_no_group_divided(tmp_path, group, folds):
    for site in range(40):
        images(tmp_path, "ab"[site % 2], site, 1 + site % 3)
    options: dict[str, Any] = {"group": group, "folds": folds, "split_seed": 6}
    found = [
        FolderDataModule(str(tmp_path), fold=fold, **options).files()
        for fold in range(1, folds + 1)
    ]
    tested = [file for files in found for part in files["test"].values() for file in part]
    assert sorted(tested) == sorted(tmp_path.rglob("*.jpg"))
    for files in found:
        parts = [{file for part in classes.values() for file in part} for classes in files.values()]
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(tested)
        if group:
            of_splits = sites(files).values()
            assert sum(map(len, of_splits)) == len(set.union(*of_splits))
    images(tmp_path, "a", 99, 3)
    grown = [
        FolderDataModule(str(tmp_path), fold=fold, **options).files()
        for fold in range(1, folds + 1)
    ]
    for before, after in zip(found, grown, strict=True):
        assert all(
            {*part} <= {*after[split][name]}
            for split, of in before.items()
            for name, part in of.items()
        )


@cases(
    "options message",
    ({"folds": 1}, "--data.folds must be at least 2, got 1"),
    ({"folds": 3, "fold": 4}, "--data.fold must be at most --data.folds, 3, got 4"),
    ({"fold": 2}, "--data.fold must be at most --data.folds, 1, got 2"),
    ({"group": "site([0-9]+)_9"}, r"'site\(\[0-9\]\+\)_9' finds nothing in '[ab]/site"),
    ({"group": "site("}, r"'site\(' is no regular expression"),
    (
        {"group": "site"},
        "class 'a' has 1 images or groups, too few for the 3 splits",
    ),
)
def test_folds_and_groups_that_cannot_be_are_refused(root, options, message):
    with pytest.raises(UserError, match=message):
        FolderDataModule(str(root), **options).files()


def test_given_splits_that_divide_a_group_are_refused(tmp_path):
    for split, first in {"train": 0, "val": 3, "test": 5}.items():
        for name in "ab":
            for site in range(first, first + 3):
                images(tmp_path / split, name, site, 2)
    with pytest.raises(
        UserError, match=r"--data\.folds cuts a test set in each fold, but '.*' has one already"
    ):
        FolderDataModule(str(tmp_path), folds=2).files()
    data = FolderDataModule(str(tmp_path), group=PATTERN)
    for _ in range(2):
        with pytest.raises(UserError, match=r"--data\.group: '5' has images in test and val"):
            data.files()
