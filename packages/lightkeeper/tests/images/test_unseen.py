"""No image that a checkpoint was trained on is measured, wherever it lies now and however the data is cut."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from lightkeeper.exact import UserError
from lightkeeper.images import ImageDataModule, MapDatasetModule
from lightkeeper.images._unseen import was_trained_on

from tests.image_files import noise, write_folder
from tests.images.test_torch_dataset import NAMES, targets
from tests.stubs import Files, Samples, Table, cases
from tests.toy import BEST, ToyData, fit

CLASSES = {"cat": 40, "dog": 40}


def about_of(data: ImageDataModule) -> dict[str, Any]:
    """What a checkpoint says of data that it was trained on."""
    return {
        "data": {"class_path": type(data).__name__, "init_args": dict(data.hparams)},
        "digests": data.digests(),
    }


def folder(root: Path, **options: Any) -> Files:
    return Files(str(root), **options)


def trained_on(about: dict[str, Any], data: Any, split: str = "test") -> bool | None:
    data.expect_classes(["cat", "dog"], "the checkpoint")
    if split == "all":
        data.test_on_all()
    return was_trained_on(about, data, split)


def other_images(root: Path) -> Path:
    """Images of the same names."""
    for number, path in enumerate(sorted(write_folder(root, CLASSES).rglob("*.jpg"))):
        noise(40, 30, seed=5000 + number).save(path)
    return root


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path / "images", CLASSES)


OTHERS: list[dict[str, Any]] = [
    {"split_seed": 1},
    {"test_fraction": 0.3},
    {"folds": 3, "fold": 2},
    {"group": "image ([0-9]+)"},
]


@cases("options", *OTHERS)
@pytest.mark.parametrize("change", ["moved", "grown", "without digests", "one folder up"])
def test_other_options_measure_training_images_wherever_these_are(root, options, change):
    about = about_of(folder(root))
    if change == "without digests":  # as in checkpoints of before
        del about["digests"]
    if change != "one folder up":
        root = root.rename(root.with_name("elsewhere"))
    if change == "grown":
        noise(40, 30, seed=9).save(root / "cat" / "image 99.jpg")
    data = folder(root if change != "one folder up" else root.parent, **options)
    assert trained_on(about, data)
    assert trained_on(about, folder(root, **options), "val")


@pytest.mark.parametrize("trained", [{}, {"train_fraction": 0.5}, *OTHERS])
def test_the_same_images_in_the_same_splits_are_unseen_wherever_they_are(root, trained):
    about = about_of(folder(root, **trained))
    root = root.rename(root.with_name("elsewhere"))
    for split in ("val", "test"):
        assert trained_on(about, folder(root, batch_size=2, **trained), split) is False
    assert trained_on(about, folder(root), "all")


def test_other_images_of_the_same_names_are_not_those_of_training(root, tmp_path):
    about = about_of(folder(root))
    others = other_images(tmp_path / "others")
    for split in ("val", "test", "all"):
        assert trained_on(about, folder(others), split) is False
    assert trained_on(about, folder(others, split_seed=1)) is False  # compared with training's
    root.rename(tmp_path / "elsewhere")
    for split in ("val", "test", "all"):
        assert trained_on(about, folder(others), split) is None


@pytest.mark.parametrize("copied", [shutil.copy, os.link, os.symlink])
@pytest.mark.parametrize("count", [1, 40])
def test_links_and_copies_of_training_images_are_found_by_no_name(root, tmp_path, copied, count):
    data = folder(root)
    about = about_of(data)
    others = other_images(tmp_path / "others")
    assert trained_on(about, folder(others), "all") is False
    paths = [file.path for file in data.files() if file.split == "train"]
    unseen = [file.path for file in data.files() if file.split == "test"]
    for at, path in enumerate(unseen):
        copied(path, others / "dog" / f"unseen {at}.jpg")
    assert trained_on(about, folder(others), "all") is False
    for at, path in enumerate(paths[:count]):
        copied(path, others / "dog" / f"other {at}.jpg")
    assert trained_on(about, folder(others), "all")


def test_an_image_that_training_has_in_both_itself_is_no_reason(root):
    data = folder(root)
    twin = next(file.path for file in data.files() if file.split == "train")
    unseen = next(file.path for file in data.files() if file.split == "test")
    shutil.copy(twin, unseen)
    about = about_of(folder(root))
    noise(40, 30, seed=9).save(root / "cat" / "image 99.jpg")
    assert trained_on(about, folder(root, batch_size=2)) is False
    assert trained_on(about, folder(root, batch_size=2, split_seed=1))


def test_a_table_of_other_paths_may_have_training_images(root, tmp_path):
    about = about_of(folder(root))
    lines = [f"{path.relative_to(tmp_path)},{path.parent.name}" for path in root.rglob("*.jpg")]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,label", *lines]))
    assert trained_on(about, Table(str(table)))  # in other splits
    root = root.rename(tmp_path / "elsewhere")
    table.write_text(table.read_text().replace("images/", "elsewhere/"))
    assert trained_on(about, Table(str(table))) is None
    of_folder: Any = Table(str(table), str(root))
    of_folder.table.files = {"": table}
    table.write_text(table.read_text().replace("elsewhere/", ""))
    assert trained_on(about, of_folder) is False
    assert trained_on(about, Table(str(table), str(root), split_seed=1))


def test_a_table_with_another_column_of_splits_may_measure_training_images(root, tmp_path):
    sets = ["train", "train", "val", "test"]
    rows = [
        f"{path},{path.parent.name},{sets[at % 4]},{sets[(at + 1) % 4]}"
        for at, path in enumerate(sorted(root.rglob("*.jpg")))
    ]
    (table := tmp_path / "labels.csv").write_text("\n".join(["path,label,one,two", *rows]))
    about = about_of(Table(table, split_column="one"))
    moved = str(table.rename(tmp_path / "other.csv"))
    for split, seen in {"val": True, "test": False}.items():
        assert trained_on(about, Table(moved, split_column="two"), split) is seen
        assert trained_on(about, Table(moved, split_column="one"), split) is False


def test_data_that_python_opens_otherwise_than_for_training_says_so(root, workplace, capsys):
    fit("--data=tests.stubs.Files", f"--data.root={root}", "--trainer.max_steps=1")
    others: list[dict[str, Any]] = [
        {},
        {"batch_size": 8},
        {"split_seed": 1},
        {"val_fraction": 0.3},
    ]
    for options in others:
        ImageDataModule.load_from_checkpoint(BEST, **options).setup("test")
        said = "may be in other splits" in capsys.readouterr().err
        assert said == bool(options.keys() & {"split_seed", "val_fraction"})


def test_a_class_keeps_its_label_where_another_is_gone_and_one_of_another_name_is_refused(
    root, workplace
):
    fit("--data=tests.stubs.Files", f"--data.root={root}", "--trainer.max_steps=1")
    (root / "cat").rename(root / "zebra")
    with pytest.raises(UserError, match=r"has images of zebra, but .* knows the 2 classes cat and"):
        ImageDataModule.load_from_checkpoint(BEST).setup("test")
    shutil.rmtree(root / "zebra")
    data = ImageDataModule.load_from_checkpoint(BEST)
    data.setup("test")
    assert data.splits["test"].labels.unique().tolist() == [1]


def samples(size: int = 90, **options: Any) -> MapDatasetModule:
    data: Any = Samples(size=size, targets=targets(size))
    return MapDatasetModule(data, class_names=NAMES, image_size=16, **{"batch_size": 4} | options)


class Cut(ToyData):
    """Images in memory, cut as CIFAR-10's are."""

    def load(self):
        splits = super().load()
        whole = splits["train"]
        parts = self.stratified_split(whole.labels.tolist(), {"val": 0.3})
        cut = {
            split: type(whole)(whole.images[at], whole.labels[at], split)
            for split, at in parts.items()
        }
        return {**cut, "test": splits["test"]}


@cases(
    "make options split seen",
    (samples, {}, "test", False),
    (samples, {"batch_size": 8}, "val", False),
    (samples, {"split_seed": 1}, "test", True),
    (samples, {"val_fraction": 0.4}, "val", True),
    (samples, {"size": 99}, "test", None),  # it has grown, or is another one
    (samples, {"size": 99, "split_seed": 1}, "test", True),
    (samples, {"test": Samples(size=9), "split_seed": 1}, "test", None),
    (Cut, {"batch_size": 8}, "val", False),
    (Cut, {"split_seed": 1}, "val", True),
    (Cut, {"split_seed": 1}, "test", False),
    (lambda **_: ToyData(), {}, "test", None),  # of another kind
)
def test_datasets_and_images_in_memory_are_told_apart_likewise(make, options, split, seen):
    about = about_of((samples if make is samples else Cut)())
    assert was_trained_on(about, make(**options), split) is seen
