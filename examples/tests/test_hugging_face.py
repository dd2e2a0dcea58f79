"""Data sets of Hugging Face, made on the spot: served as the files of a folder are."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightkeeper.exact import UserError

from examples.tests.files import hugging_face_rows, save_parquet, save_splits
from project.data import FolderDataModule, TorchDatasetModule
from tests.conftest import cases, make_folder
from tests.stubs import attached, require_served_alike

datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")
SMALL: dict[str, Any] = {"image_size": 16, "batch_size": 4, "num_workers": 0, "seed": 3}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def save_rows(folder: Path) -> None:
    hugging_face_rows(30).save_to_disk(folder)


def save_texts(folder: Path) -> None:
    data = hugging_face_rows(30)
    names = ["abc"[label] for label in data["label"]]
    data.remove_columns("label").add_column("label", names).save_to_disk(folder)


def opened(root: Path, **options: Any) -> Any:
    from examples.hugging_face import HuggingFaceDataset

    return partial(HuggingFaceDataset, str(root), **options)


@pytest.mark.parametrize("save", [save_rows, save_splits, save_parquet, save_texts])
def test_each_kind_of_folder_is_understood(tmp_path, save):
    root = tmp_path / "set"
    save(root)
    test = opened(root, split="test") if save in (save_splits, save_parquet) else None
    data = attached(TorchDatasetModule(opened(root), test=test, **SMALL))
    assert data.class_names == ["a", "b", "c"]
    assert len(data.splits["test"]) == 6 or test is None
    assert sum(map(len, data.splits.values())) == (36 if test else 30)
    labels = [label for _, label in data.datasets["train"]]
    assert labels == [number % 3 for number in range(30)]
    with pytest.raises(UserError, match=r"did you mean .*examples/hugging_face.py reads"):
        FolderDataModule(str(root)).files()


def test_images_are_served_as_those_of_the_folder_are_to_the_last_bit(tmp_path):
    splits = ("train", "val", "test")
    for split in splits:
        make_folder(tmp_path / split, {"rose": 10, "daisy": 20}, size=(60, 50))
    files = [opened(tmp_path, split="validation" if split == "val" else split) for split in splits]
    require_served_alike(
        TorchDatasetModule(*files, **SMALL), FolderDataModule(str(tmp_path), **SMALL)
    )


@cases(
    "options message",
    ({"label_column": "kind"}, "has no column kind, but image, label$"),
    ({"image_column": "photo"}, "has no column photo, but image, label$"),
    ({"split": "extra"}, "^[^\n]+extra[^\n]+$"),
    ({"root": "nowhere"}, "^nowhere: [^\n]+$"),
)
def test_what_is_not_there_is_one_line(workplace, options, message):
    save_splits(Path("set"))
    with pytest.raises(UserError, match=message):
        opened(**{"root": "set", **options})()
