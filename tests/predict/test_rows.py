"""What ``python -m project.predict`` writes, and the mistakes that it names."""

import csv
import io
import json
import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from project.engine.errors import UserError
from project.model import ImageClassifier
from project.predict import parse, predict
from tests.memory import memory, needs_linux
from tests.predict.conftest import CPU, label, rows
from tests.small import one_line

v2: Any = import_module("torchvision.transforms.v2")


def expected(checkpoint: Path, path: str, flips: bool = False) -> torch.Tensor:
    """Probabilities by torchvision's transforms and a plain loop."""
    model = ImageClassifier.load_from_checkpoint(checkpoint).eval()
    sizes = model.preprocessing
    steps = [v2.PILToTensor(), v2.Resize(sizes["resize"], antialias=True), v2.CenterCrop(sizes["crop"])]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(sizes["mean"], sizes["std"])]
    with Image.open(path) as opened:
        image = v2.Compose(steps)(opened.convert("RGB"))
    with torch.inference_mode():
        views = [image, v2.functional.horizontal_flip(image)] if flips else [image]
        return torch.stack([model.network(view[None])[0] for view in views]).mean(0).softmax(0)


@pytest.mark.parametrize("flips", [False, True])
def test_rows_are_what_a_plain_loop_computes(checkpoint, photos, tmp_path, flips):
    options = ["--flips"] if flips else []
    assert label(checkpoint, photos, "--top_k=3", f"--output={tmp_path / 'rows.csv'}", *options) == 1
    names = ImageClassifier.load_from_checkpoint(checkpoint).class_names
    found = rows(tmp_path / "rows.csv")
    pngs, others = ["1.png", "3.png", "5.png", "7.png"], ["0.png", "2.png", "4.png", "6.png", "8.png"]
    order = [*sorted([*pngs, "2 notes.jpg"]), *(f"more/{name}" for name in [*others, "empty.jpg"])]
    assert [row["path"] for row in found] == [str(photos / name) for name in order]
    for row in found:
        if row["error"]:
            assert row["path"].endswith(".jpg")
            assert row["error"] == "not an image"
            assert not any(row[name] for name in row if name.startswith(("label", "confidence")))
            continue
        probabilities = expected(checkpoint, row["path"], flips)
        best = probabilities.topk(3)
        assert [row["label"], row["label_2"], row["label_3"]] == [names[index] for index in best.indices]
        confidences = [float(row[name]) for name in ("confidence", "confidence_2", "confidence_3")]
        assert confidences == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_model_with_test_time_augmentation_needs_no_flips(checkpoint, photos, tmp_path):
    state = torch.load(checkpoint, weights_only=True)
    state["hyper_parameters"]["test_time_augmentation"] = "flip_and_shift"
    torch.save(state, tmp_path / "with_views.ckpt")
    for name, flips in (("alone.csv", []), ("flips.csv", ["--flips"])):
        label(tmp_path / "with_views.ckpt", photos, f"--output={tmp_path / name}", *flips)
    assert (tmp_path / "flips.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_no_row_depends_on_the_batch_size(checkpoint, photos, tmp_path, size):
    label(checkpoint, photos, f"--output={tmp_path / 'one.csv'}", "--top_k=8")
    label(checkpoint, photos, f"--output={tmp_path / 'other.csv'}", "--top_k=8", f"--batch_size={size}")
    assert (tmp_path / "other.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_every_format_has_the_same_rows(checkpoint, photos, tmp_path, ending):
    for name in ("rows.csv", f"rows.{ending}"):
        label(checkpoint, photos, f"--output={tmp_path / name}", "--top_k=2")
    if ending == "jsonl":
        found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    else:
        found = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "rows.parquet").to_pylist()
    assert [
        {
            name: "" if value is None else value if isinstance(value, str) else float(torch.tensor(value))
            for name, value in row.items()
        }
        for row in found
    ] == [
        {
            name: float(torch.tensor(float(text))) if name.startswith("confidence") and text else text
            for name, text in row.items()
        }
        for row in rows(tmp_path / "rows.csv")
    ]


def test_what_cannot_be_an_image_has_a_row(checkpoint, photos, tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    strange = os.fsdecode(bytes(tmp_path) + b"/caf\xe9,\n.png")
    shutil.copy(photos / "1.png", strange)
    paths = [tmp_path / "pipe.jpg", tmp_path / "missing.jpg", strange]
    assert label(checkpoint, *paths) == 1
    out, err = capfd.readouterr()
    found = list(csv.DictReader(io.StringIO(out, newline="")))
    assert [row["error"] for row in found] == ["not a file", "No such file or directory", ""]
    assert found[2]["path"] == f"{tmp_path}/caf\\xe9,\n.png"
    assert "labelled 3 images" in err
    assert "; 2 files cannot be read" in err


def test_a_file_that_is_there_is_replaced_only_when_asked_to(checkpoint, photos, tmp_path):
    (tmp_path / "rows.csv").write_text("precious")
    with pytest.raises(UserError, match=r"is there already; --overwrite replaces it"):
        label(checkpoint, photos / "1.png", f"--output={tmp_path / 'rows.csv'}")
    assert label(checkpoint, photos / "1.png", f"--output={tmp_path / 'rows.csv'}", "--overwrite") == 0
    assert len(rows(tmp_path / "rows.csv")) == 1


def test_the_sheet_shows_the_first_images(checkpoint, photos, tmp_path, monkeypatch):
    drawn: list[Any] = []
    plots = import_module("project.analysis.plots")
    own = plots.image_grid

    def image_grid(*args):
        drawn.append(args)
        return own(*args)

    monkeypatch.setattr(plots, "image_grid", image_grid)
    label(checkpoint, photos, f"--sheet={tmp_path / 'sheet.png'}", f"--output={tmp_path / 'rows.csv'}")
    images, titles = drawn[0]
    readable = [row for row in rows(tmp_path / "rows.csv") if not row["error"]]
    assert titles == [f"{row['label']}\n{float(row['confidence']):.1%}" for row in readable]
    assert len(images) == len(readable) == 9
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert min(sheet.size) > 100


WRONG = {
    "--top_k=9": r"--top_k must be from 1 to 8",
    "--batch_size=0": r"--batch_size must be at least 1",
    "--output=rows.txt": r"--output must end with \.csv, \.jsonl or \.parquet",
    "--resume": r"--resume needs an --output",
    "--sheet=sheet.jpg": r"--sheet must end with \.png",
    "--sheet=no/folder.png": r"--sheet: 'no/folder\.png' cannot be written",
    "--trainer.devices=-2": r"these --trainer options do not work here",
}


@pytest.mark.parametrize("option", WRONG)
def test_a_mistake_is_one_line(checkpoint, photos, workplace, option, capsys):
    with pytest.raises(UserError, match=WRONG[option]):
        predict(parse([str(checkpoint), str(photos), *CPU, option]))
    assert not list(workplace.iterdir())


def test_no_files_are_one_line(checkpoint, tmp_path, capsys):
    assert "there are no images in" in one_line(lambda: label(checkpoint, tmp_path), capsys)
    assert "name a checkpoint and then images" in one_line(lambda: label(checkpoint), capsys)


@pytest.mark.slow
@needs_linux
def test_memory_does_not_grow_with_the_number_of_files(checkpoint, photos, tmp_path, monkeypatch):
    seen: list[int] = []

    def logits(_model, images):
        seen.append(memory("Rss"))
        return torch.zeros(len(images), 8)

    def entries(_options, quietly=False):
        return (f"{photos}/{number}-{'x' * 100}.jpg" for number in range(0 if quietly else 20_000))

    monkeypatch.setattr("project.analysis.prediction.evaluation_logits", logits)
    monkeypatch.setattr("project.predict._paths", entries)
    assert label(checkpoint, "many", f"--output={tmp_path / 'rows.csv'}", "--batch_size=128") == 1
    assert len(rows(tmp_path / "rows.csv")) == 20_000
    quarter = len(seen) // 4
    assert max(seen[3 * quarter :]) - max(seen[:quarter]) < 2e6  # the paths alone are more


def test_help_ends_well(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    assert "example: python -m project.predict" in " ".join(capsys.readouterr().out.split())
