"""Folders of images: which classes and splits people's layouts have, and what their names decide."""

import shutil
from pathlib import Path
from unicodedata import normalize

import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images._splits import SPLITS

from tests.image_files import write_folder, write_images
from tests.stubs import Files, attached, cases

CLASSES = {"rose": 10, "daisy": 20, "tulip": 15}


def module(root, **options):
    return Files(str(root), **options)


def rename(root):
    (root / "train/rose/image 3.jpg").rename(root / "train/rose/image 33.jpg")


def exchange(root):
    shutil.copy(root / "train/rose/image 4.jpg", root / "train/rose/new.jpg")
    (root / "train/rose/image 5.jpg").unlink()


def relabel(root):
    for label, other in (("rose", "daisy"), ("daisy", "rose")):
        (root / f"train/{label}/image 0.jpg").rename(root / f"train/{other}/of {label}.jpg")


def edit(root):
    shutil.copy(root / "train/rose/image 0.jpg", root / "val/daisy/image 2.jpg")


def move(root):
    shutil.copytree(root, root.with_name("elsewhere") / "deep")
    shutil.rmtree(root)


@cases(
    "change differs",
    (rename, {"train"}),
    (exchange, {"train"}),
    (relabel, {"train"}),
    (edit, {"val"}),
    (move, set()),
)
def test_data_are_told_apart_by_names_labels_and_lengths_wherever_they_lie(
    tmp_path, change, differs
):
    root = tmp_path / "images"
    folders = {
        "train/rose": 8,
        "train/daisy": 8,
        "val/rose": 3,
        "val/daisy": 3,
        "test/rose": 3,
        "test/daisy": 3,
    }
    write_folder(root, folders)
    before = module(root).digests()
    change(root)
    data = module(root if root.exists() else tmp_path / "elsewhere")
    after = data.digests()
    assert {split for split in before if before[split] != after[split]} == differs
    assert attached(data).digests() == after


def test_a_random_crop_depends_on_seed_epoch_and_index_alone(tmp_path):
    root = write_folder(tmp_path, CLASSES)
    dataset = attached(module(root)).splits["train"]
    size = len(dataset)
    keys = [(5, index) for index in range(size)]
    images = dataset.__getitems__(keys).images
    assert torch.equal(torch.cat([dataset.__getitems__([key]).images for key in keys]), images)
    others = (
        dataset.__getitems__(list(range(size))),
        dataset.__getitems__([(5, size + index) for index in range(size)]),  # a second time
        attached(module(root, seed=1)).splits["train"].__getitems__(keys),
    )
    for other in others:
        assert not (other.images == images).flatten(1).all(1).any()


@cases(
    "folders message",
    ({}, "has no class folders with images"),
    ({"a": 0, "b/x.heic": 0}, r"has no class folders with images \(files left out: 2 \.heic\)"),
    ({"a": 5, "b": 5, "empty one": 0}, r"empty one' has no images \(files left out: 3 \.heic\)"),
    ({"train_images": 9}, "one class only, 'train_images'"),
    ({"a": 5, "small": 2}, r"'small' has 2 image"),
    ({"train/a": 5, "train/b": 5, "val/a": 1, "val/c": 1}, "no training image of c"),
    ({"train/a": 5, "train/b": 1, "val/a": 1, "val/b": 1}, "'b' has 1 image"),
    ({".": 5}, "has no class folders with images .*; .* or label_from"),
    ({"train": 5, "val": 5}, "train and val .* look like splits, not classes; call .* 'train'"),
    ({"val/a": 5, "test/a": 5}, "test and val .* look like splits"),
    (
        {"train/test/a": 5, "train/train/a": 5, "train/train/b": 5},
        "test and train of .*train' look",
    ),
    ({"ds/train/a": 5, "ds/val/a": 5, "other": 5}, "ds/train and ds/val of .* look like splits"),
    ({"Training/a": 5, "train/a": 5}, "Training and train both mean train"),
    ({"train/a": 5, "train/b": 5, "held_out/a": 2}, "held_out' has images, but is no split"),
    ({"train/a": 5, "train/b": 5, "held_out": 2}, "held_out' has images, but is no split"),
    ({"train/a": 5, "train/b": 5, "val": 3}, "val' has 3 images, but no folder for each class"),
    (
        {"set 1/a": 5, "set 1/b": 5, "set 2/a": 5, "set 2/b": 5},
        "set 1 and set 2 of .* look like splits, .* with class_names",
    ),
)
def test_a_folder_that_cannot_be_learnt_from_is_refused(tmp_path, folders, message):
    write_folder(tmp_path, folders)
    for folder in folders:
        (tmp_path / folder / "photo.heic").touch()  # as telephones write
    with pytest.raises(UserError, match=message):
        module(tmp_path).files()


@cases(
    "patterns label_from names layout",
    (
        ["images/cat_{}.jpg", "images/dog_{}.jpg"],
        "([a-z]+)_[0-9]+",
        ["cat", "dog"],
        "2 classes from paths, by '([a-z]+)_[0-9]+'",
    ),
    (
        ["train/cat.{}.jpg", "train/dog.{}.jpg", "test/dog.{}.jpg"],
        "([a-z]+)[.][0-9]",
        ["cat", "dog"],
        "2 classes from paths, by '([a-z]+)[.][0-9]'; test from test/; no test images of"
        " cat; val cut from train",
    ),
    (
        ["animals/cat/{}.jpg", "animals/dog/{}.jpg", "cars/audi/{}.jpg"],
        "[^/]+/([^/]+)",
        ["audi", "cat", "dog"],
        "3 classes from paths, by '[^/]+/([^/]+)'",
    ),
)
def test_a_regular_expression_finds_classes_in_paths(tmp_path, patterns, label_from, names, layout):
    write_images(tmp_path, dict.fromkeys(patterns, 4))
    data = module(tmp_path, label_from=label_from)
    assert data.class_names == names
    assert data.layout == layout
    assert len(data.files()) == 4 * len(patterns)
    assert all(file.label in file.path.removeprefix(str(tmp_path)) for file in data.files())
    for pattern in ("(x)", "a|(x)"):  # the group of the second may match nothing
        with pytest.raises(UserError, match=r"label_from: '.*\(x\)' finds nothing in '[a-z]+/"):
            module(tmp_path, label_from=pattern).files()


@cases(
    "folders sizes layout",
    (
        {"Train/a": 5, "Train/b": 5, "Validation/a": 2, "Validation/b": 2},
        (8, 4, 2),
        "2 classes from the folders of data/Train/; val from Validation/; test cut from train",
    ),
    (
        {"train/a": 5, "train/b": 5, "dev/a": 2, "dev/b": 2, "eval/a": 1, "eval/b": 1},
        (10, 4, 2),
        "2 classes from the folders of data/train/; val from dev/; test from eval/",
    ),
    (
        {"seg_train/seg_train/a": 5, "seg_train/seg_train/b": 5, "seg_test/a": 2, "seg_test/b": 2},
        (8, 2, 4),
        "2 classes from the folders of data/seg_train/seg_train/; test from seg_test/; val cut from"
        " train",
    ),
    (
        {"train_images/a": 5, "train_images/b": 5, "test_images": 7},
        (6, 2, 2),
        "2 classes from the folders of data/train_images/; 7 images of test_images/ have no classes:"
        " they are for the command predict",
    ),
    (
        {"flowers/a": 5, "flowers/b": 5, ".": 3},
        (6, 2, 2),
        "2 classes from the folders of data/flowers/; images in no class are left out: 3, such as"
        " image 0.jpg",
    ),
    (
        {"train/a": 5, "train/b": 5, "train": 1, "val/a": 2, "val/b": 0, "test/a": 2},
        (10, 2, 2),
        "2 classes from the folders of data/train/; val from val/; test from test/; images in no"
        " class are left out: 1, such as train/image 0.jpg; no val images of b; no test images of b",
    ),
    (
        {"train/a": 5, "train/b": 5, "val/a": 0, "val/b": 0},
        (6, 2, 2),
        "2 classes from the folders of data/train/; no images in val/",
    ),
    ({"bus": 5, "train": 5}, (6, 2, 2), "2 classes from the folders of data/"),
)
def test_the_layouts_that_people_have_are_understood_and_said(tmp_path, folders, sizes, layout):
    write_folder(tmp_path / "data", folders)
    data = module(tmp_path / "data")
    assert data.class_names == (["bus", "train"] if "bus" in folders else ["a", "b"])
    assert data.split_sizes() == dict(zip(("train", "val", "test"), sizes, strict=True))
    assert data.layout == layout


def test_names_are_one_text_whatever_their_bytes(tmp_path):
    composed, parts = "caf\u00e9", "cafe\u0301"
    one, other = tmp_path / "one", tmp_path / "other"
    for root, name in ((one, composed), (other, parts)):
        write_folder(root, {name: 40, "tea": 40})
        for file in (root / name).iterdir():
            file.rename(file.with_name(f"{name} {file.name}"))
    first, second = (
        [
            file._replace(path=normalize("NFC", Path(file.path).name))
            for file in module(root).files()
        ]
        for root in (one, other)
    )
    assert first == second
    assert {file.label for file in first} == {composed, "tea"}


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path):
    root = write_folder(tmp_path, {str(number): 3 for number in (10, 9.0, 100, -1)})
    assert module(root).class_names == ["-1", "9.0", "10", "100"]
    assert module(root, class_names=["10", "100", "9.0", "-1"]).class_names[0] == "10"


def test_new_images_are_labelled_by_the_classes_of_a_checkpoint_and_may_lack_some(tmp_path):
    data = module(write_folder(tmp_path, {"rose": 2, "rose/x": 1, "rose/y": 1}))
    data.expect_classes(["tulip", "daisy", "rose"], "best.ckpt")
    data.test_on_all()
    data.setup("test")
    assert data.class_names == ["tulip", "daisy", "rose"]
    assert data.splits["all"].labels.tolist() == [2] * 4
    assert data.layout.endswith("no all images of tulip and daisy")
    data.expect_classes(["rose", "daisy"], "other.ckpt")
    data.setup("test")
    assert data.splits["all"].labels.tolist() == [0] * 4


def parts_of(root, **options) -> dict[str, set[str]]:
    files = module(root, **options).files()
    return {split: {file.path for file in files if file.split == split} for split in SPLITS}


@cases("options", {}, {"folds": 4, "fold": 2}, {"group": "patient[0-9]+"})
def test_a_share_of_the_training_images_is_part_of_a_larger_one(tmp_path, options):
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(600):
            (tmp_path / label / f"patient{number // 2}_{number}.jpg").write_bytes(b"not opened")
    shares = (0.1, 0.3, 1.0)
    tenth, third, whole = (parts_of(tmp_path, train_fraction=share, **options) for share in shares)
    assert tenth["train"] < third["train"] < whole["train"]
    for part, share in ((tenth, 0.1), (third, 0.3)):
        assert (part["val"], part["test"]) == (whole["val"], whole["test"])
        for label in ("/a/", "/b/"):
            counts = [sum(label in path for path in each["train"]) for each in (part, whole)]
            assert counts[0] / counts[1] == pytest.approx(share, abs=0.06)
        if "group" in options:
            kept = {path.rpartition("_")[0] for path in part["train"]}
            others = whole["train"] - part["train"]
            assert kept.isdisjoint(path.rpartition("_")[0] for path in others)


def test_the_share_of_the_training_images_is_said(tmp_path):
    data = module(write_folder(tmp_path, CLASSES), train_fraction=0.5)
    count = sum(file.split == "train" for file in data.files())
    whole = sum(file.split == "train" for file in module(tmp_path).files())
    assert f"; trains on {count} of {whole} images" in data.layout
