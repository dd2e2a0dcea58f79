"""Each layout of the table "Your data at a glance" is made small, and its command is run."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.tests.files import write_coco
from tests.conftest import QUIET, ROOT, SLIM, TINY_TRAINER, draw_image, fit
from tests.data.test_hugging_face import save_parquet, save_splits

TABLE = (ROOT / "docs" / "your_data.md").read_text().partition("at a glance")[2].partition("\n## ")
ROWS = re.findall(r"^\| (.*) \| (.*) \|$", TABLE[0], re.M)[1:]
COMMANDS = [row for row in ROWS if row[1].startswith("`--data")]
QUICK = ["--trainer.fast_dev_run=true", "--data.image_size=16", "--data.batch_size=4", "--name=run"]
CATS = ("cat", "dog")


def write_parquet(file: Path, columns: dict[str, Any]) -> Path:
    """Writes columns, where the extra is installed that reads them."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), file)
    return file


def images(*patterns: str, count: int = 12) -> None:
    """Writes so many small files for each pattern of a path."""
    for path in [Path(pattern.format(at)) for pattern in patterns for at in range(count)]:
        path.parent.mkdir(parents=True, exist_ok=True)
        draw_image(0.5, len(str(path)), (20, 18)).save(path)


def table(
    file: str,
    row: Callable[[int], str],
    header: str = "file,label",
    numbers: range = range(12),
) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text("\n".join([header, *map(row, numbers)]))


def named(number: int) -> str:
    return f"img/{number}.jpg,{CATS[number % 2]}"


def one_hot(number: int) -> str:
    return f"{number}.jpg, {number % 2}, {1 - number % 2}"


def arrays() -> dict[str, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 18, 3), dtype=np.uint8)
    return {"train_images": pixels, "train_labels": np.arange(24)[:, None] % 3}


def hdf5() -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is no requirement")
    with h5py.File("FILE.h5", "w") as file:
        for name, values in arrays().items():
            file[name] = values


MADE: dict[str, list[Callable[[], object]]] = {
    "`daisy/1.jpg`": [lambda: images("FOLDER/daisy/{}.jpg", "FOLDER/rose/{}.jpg")],
    "`train/daisy/1.jpg`, `valid": [
        lambda: images("FOLDER/train/a/{}.jpg", "FOLDER/train/b/{}.jpg"),
        lambda: images("FOLDER/valid/a/{}.jpg", "FOLDER/valid/b/{}.jpg"),
    ],
    "`train/daisy/1.jpg`, `test": [
        lambda: images("FOLDER/train/a/{}.jpg", "FOLDER/train/b/{}.jpg", "FOLDER/test/{}.jpg")
    ],
    "`cat_1.jpg`": [lambda: images("FOLDER/train/cat.{}.jpg", "FOLDER/train/dog_{}.jpg")],
    "`animals": [lambda: images("FOLDER/animals/cat/{}.jpg", "FOLDER/cars/audi/{}.jpg")],
    "a CSV": [lambda: table("labels.csv", lambda i: f"{i};{CATS[i % 2]}", "id;breed")],
    "columns of other": [lambda: table("labels.csv", lambda i: f"m,{named(i)}", "sex,photo,dx")],
    "a column of 0": [lambda: table("labels.csv", lambda i: f"img/{one_hot(i)}", "image,cat,dog")],
    "numbers": [
        lambda: table("labels.csv", lambda i: f"img/{i}.jpg,{i % 2}"),
        lambda: Path("names.json").write_text('{"0": "cat", "1": "dog"}'),
    ],
    "images elsewhere": [
        lambda: table("labels.csv", named),
        lambda: Path("FOLDER").mkdir(),
        lambda: Path("img").rename("FOLDER/img"),
    ],
    "`train.csv`": [
        lambda: table("train.csv", named, numbers=range(8)),
        lambda: table("val.csv", named, numbers=range(8, 12)),
    ],
    "`train/_classes.csv`": [
        lambda: table("FOLDER/train/_classes.csv", one_hot, "filename, cat, dog"),
        lambda: table("FOLDER/valid/_classes.csv", one_hot, "filename, cat, dog"),
        lambda: images("FOLDER/train/{}.jpg", "FOLDER/valid/{}.jpg"),
    ],
    "`train/metadata.jsonl`": [
        lambda: images("FOLDER/train/{}.jpg"),
        lambda: Path("FOLDER/train/metadata.jsonl").write_text(
            "\n".join(json.dumps({"file_name": f"{i}.jpg", "label": i % 2}) for i in range(12))
        ),
    ],
    "Parquet with paths": [
        lambda: write_parquet(
            Path("labels.parquet"),
            {"file": [f"img/{i}.jpg" for i in range(12)], "label": [i % 2 for i in range(12)]},
        )
    ],
    "Parquet with images": [lambda: save_parquet(Path("FOLDER"))],
    "a name on": [lambda: save_splits(Path("NAME"))],
    "a class of": [],
    "`.npz`": [lambda: np.savez("FILE.npz", **arrays())],
    "`.mat`": [lambda: pytest.importorskip("scipy.io").savemat("FILE.mat", arrays())],
    "HDF5": [hdf5],
    "COCO": [lambda: write_coco(Path("FILE.json"))],
}


@pytest.mark.parametrize(("layout", "typed"), COMMANDS, ids=[layout for layout, _ in COMMANDS])
def test_what_the_table_says_to_type_trains(layout, typed, workplace):
    (steps,) = [steps for start, steps in MADE.items() if layout.startswith(start)]
    images("img/{}.jpg")
    for step in steps:
        step()
    words = shlex.split(typed.strip("`"))
    if "FakeData" in typed:
        words += ["--data.train.size=40", "--data.train.image_size=[3,20,18]"]
    cli = fit(*words, *QUICK, "--data.num_workers=0", *SLIM, *TINY_TRAINER, *QUIET)
    assert cli.trainer.global_step == 1
    assert len(cli.datamodule.class_names) > 1
