"""Data sets of Hugging Face, made on the spot: served as files are, opened by a checkpoint."""

import sys
from pathlib import Path
from typing import Any

import pytest
from lightkeeper.exact import UserError

from project.data import FolderDataModule, HuggingFaceDataModule
from project.fit import FitCLI
from tests.conftest import (
    QUIET,
    SLIM,
    TINY_TRAINER,
    cases,
    draw_image,
    evaluate,
    fit,
    make_folder,
    one_line,
)
from tests.stubs import attached, require_served_alike

SMALL = ["--data.image_size=16", "--data.batch_size=8", "--data.num_workers=0"]
TINY_MODEL = [*SLIM, *TINY_TRAINER, *QUIET, "--name=run"]
datasets = pytest.importorskip("datasets", reason="the extra datasets is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def rows(count: int, **columns: Any) -> Any:
    features = {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
        **{name: datasets.ClassLabel(names=["x", "y"]) for name in columns},
    }
    values = {
        "image": [draw_image(0.5, number, (20, 18)) for number in range(count)],
        "label": [number % 3 for number in range(count)],
        **columns,
    }
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def save_rows(folder: Path) -> None:
    rows(30).save_to_disk(folder)


def save_splits(folder: Path) -> None:
    parts = {"train": rows(30), "validation": rows(6), "extra": rows(3)}
    datasets.DatasetDict(parts).save_to_disk(folder)


def save_parquet(folder: Path) -> None:
    folder.mkdir()
    for split, count in {"train": 30, "validation": 6}.items():
        rows(count).to_parquet(folder / f"{split}.parquet")


def save_texts(folder: Path) -> None:
    data = rows(30)
    names = [("2", "9", "10")[label] for label in data["label"]]
    data.remove_columns("label").add_column("label", names).save_to_disk(folder)


def save_hidden(folder: Path) -> None:
    hidden = rows(6).map(lambda row: row | {"label": -1})
    datasets.DatasetDict({"train": rows(30), "test": hidden}).save_to_disk(folder)


def module(folder: Path, **options: Any) -> HuggingFaceDataModule:
    sizes = {"image_size": 16, "batch_size": 4, "num_workers": 0}
    return HuggingFaceDataModule(**{"root": str(folder), **sizes, **options})


@cases(
    "save layout",
    (save_rows, "3 classes from the column label"),
    (save_splits, "3 classes from the column label; val from validation; splits left out: extra"),
    (save_parquet, "3 classes from the column label; val from validation"),
    (save_texts, "3 classes from the column label"),
    (
        save_hidden,
        "3 classes from the column label; 6 images of test have no classes: they are for the"
        " command predict",
    ),
)
def test_each_kind_of_folder_is_understood(tmp_path, save, layout):
    save(tmp_path / "set")
    data = attached(module(tmp_path / "set"))
    assert data.class_names == (["2", "9", "10"] if save is save_texts else ["a", "b", "c"])
    assert data.layout == layout
    assert len(data.splits["val"]) == 6 or "validation" not in layout
    assert sum(map(len, data.splits.values())) == (36 if "validation" in layout else 30)
    with pytest.raises(UserError, match=f"did you mean --data (hf:)?{tmp_path}/set"):
        FolderDataModule(str(tmp_path / "set")).files()


def test_images_are_served_as_those_of_the_folder_are_to_the_last_bit(tmp_path):
    for split in ("train", "val", "test"):
        make_folder(tmp_path / split, {"rose": 10, "daisy": 20}, size=(60, 50))
    options: dict[str, Any] = {"image_size": 16, "batch_size": 4, "num_workers": 0, "seed": 3}
    require_served_alike(
        HuggingFaceDataModule(str(tmp_path), **options), FolderDataModule(str(tmp_path), **options)
    )


@cases(
    "parts options message",
    ({"train": rows(9, kind=[0] * 9)}, {}, "label_column: must name one of the columns"),
    (
        {"train": rows(9).remove_columns("label").add_column("label", [["a"], ["b"], ["c"]] * 3)},
        {},
        "label_column: label has no single text or number of each image",
    ),
    ({"train": rows(9)}, {"image_column": "photo"}, "image_column: must name .*, got photo"),
    ({"train": rows(9).remove_columns("image")}, {}, "image_column: must name one of .* label"),
    ({"validation": rows(9), "extra": rows(9)}, {}, "none of the splits validation, extra"),
    ({}, {}, r"^root: [^\n]+$"),
    ({}, {"root": ""}, "root: must name a dataset"),
)
def test_what_is_ambiguous_or_not_there_is_refused(tmp_path, parts, options, message):
    if parts:
        datasets.DatasetDict(parts).save_to_disk(tmp_path)
    with pytest.raises(UserError, match=message):
        _ = module(tmp_path, **options).class_names


def test_a_checkpoint_opens_a_folder_again_but_chooses_nothing_that_is_downloaded(
    workplace, capsys
):
    save_splits(Path("set"))
    fit("--data=hf:set", *SMALL, *TINY_MODEL)
    evaluate("runs/run/checkpoints/best.ckpt")
    Path("set").rename("moved")
    said = one_line(lambda: evaluate("runs/run/checkpoints/best.ckpt"), capsys)
    assert "trained on the images in 'set', which are not there" in said
    evaluate("runs/run/checkpoints/best.ckpt", "--data.root=moved")


def test_the_librarys_own_function_is_taken_with_its_options(workplace):
    save_rows(Path("set"))
    options = ["--data.train=datasets.load_from_disk", "--data.train.dataset_path=set"]
    cli = FitCLI(["--data=HuggingFaceDataModule", *options, *SMALL, *TINY_MODEL])
    assert sum(map(len, attached(cli.datamodule).splits.values())) == 30
    assert cli.data_flags() == options


def test_without_the_library_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"datasets[^\n]*; pip install .*\[datasets\]"):
        _ = module(tmp_path).class_names
