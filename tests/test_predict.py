"""The promises of ``python -m project.predict``: the rows of a plain loop, none lost, none doubled."""

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from project.engine import UserError
from project.engine.commands.predict import resume_rows
from project.model import ImageClassifier
from tests.analysis.test_prediction import by_torchvision
from tests.conftest import (
    SMALL_FILES,
    as_in_a_terminal,
    cases,
    draw_image,
    evaluate,
    label,
    make_folder,
)
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import environment, run, started, succeed, torchrun, wait_until
from tests.small import one_line, rows

COMMAND = [sys.executable, "-m", "project.predict"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A small network that takes images for several classes, with confidences in between."""
    path: Path = tmp_path_factory.mktemp("checkpoint") / "some.ckpt"
    with as_in_a_terminal():
        one, model = trainer(1), classifier()
        model.preprocessing["resize"] = 36
        model.hparams["preprocessing"] = model.preprocessing
        one.test(model, datamodule=flowers(32, 12, 4), verbose=False)
        one.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Nine images of several sizes, with two files among them that are none."""
    root: Path = tmp_path_factory.mktemp("photos")
    (root / "more").mkdir()
    for number in range(9):
        name = f"{number}.png" if number % 2 else f"more/{number}.png"
        draw_image(number / 9, seed=number, size=(40 + 7 * number, 50)).save(root / name)
    (root / "2 notes.jpg").write_text("no image")
    (root / "more" / "empty.jpg").touch()
    return root


@cases("options", [], ["--flips", "--batch_size=3", "--abstain=0.14"])
def test_rows_are_what_a_plain_loop_computes(checkpoint, photos, tmp_path, options):
    out = tmp_path / "rows.csv"
    wanted = ["--top_k=3", "--probabilities", f"--output={out}"]
    assert label(checkpoint, photos, *wanted, *options) == 1
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    files = ["1.png", "2 notes.jpg", "3.png", "5.png", "7.png"]
    files += [f"more/{name}" for name in ("0.png", "2.png", "4.png", "6.png", "8.png", "empty.jpg")]
    written = rows(out)
    assert [row.pop("path") for row in written] == [str(photos / name) for name in files]
    least = 0.14 if "--abstain=0.14" in options else 0
    unsure = 0
    for file, row in zip(files, written, strict=True):
        if file.endswith(".jpg"):
            assert row.pop("error") == "not an image"
            assert not any(row.values())
            continue
        assert not row["error"]
        shares = by_torchvision(model, [photos / file], flips="--flips" in options)[1][0].softmax(0)
        columns = [float(row[f"probability_{name}"]) for name in model.class_names]
        assert columns == pytest.approx(shares.tolist(), abs=1e-4)
        unsure += (is_unsure := float(row["confidence"]) < least)
        for place, confidence, index in zip(("", "_2", "_3"), *shares.topk(3), strict=True):
            name = "" if is_unsure and place == "" else model.class_names[index]
            assert row[f"label{place}"] == name
            assert float(row[f"confidence{place}"]) == pytest.approx(confidence.item(), abs=1e-4)
    assert (0 < unsure < 9) == bool(least)


def test_files_that_are_no_images_have_rows(checkpoint, photos, tmp_path, capfd):
    os.mkfifo(tmp_path / "pipe.jpg")
    strange = os.fsdecode(bytes(tmp_path) + b"/caf\xe9,\n.png")
    shutil.copy(photos / "1.png", strange)
    assert label(checkpoint, tmp_path / "pipe.jpg", tmp_path / "missing.jpg", strange) == 1
    out, err = capfd.readouterr()
    found = list(csv.DictReader(io.StringIO(out, newline="")))
    assert [row["error"] for row in found] == ["not a file", "No such file or directory", ""]
    assert found[2]["path"] == f"{tmp_path}/caf\\xe9,\n.png"
    assert re.search("labelled 3 images.*; 2 cannot be read", err)


def test_resuming_labels_the_files_that_have_no_row(checkpoint, photos, tmp_path):
    quoted = shutil.copy(photos / "1.png", tmp_path / 'line\nbreak, "quoted".png')
    whole, out = tmp_path / "whole.csv", tmp_path / "out.csv"
    options = [checkpoint, quoted, photos, "--batch_size=2", "--top_k=2"]
    label(*options, f"--output={whole}")
    options.append(f"--output={out}")
    predict = ImageClassifier.predict_step
    sizes = list[int]()

    def step(self, batch, batch_idx):
        sizes.append(len(batch.images))
        if len(sizes) == 4:
            raise ConnectionAbortedError
        return predict(self, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageClassifier, "predict_step", step)
        with pytest.raises(ConnectionAbortedError):
            label(*options)
        out.write_bytes(out.read_bytes()[:-9])  # as on a full disk: five rows are whole
        for more, message in (
            ([], "--overwrite replaces it"),
            (["--resume", "--top_k=3"], "has other rows or columns"),
        ):
            with pytest.raises(UserError, match=message):
                label(*options, *more)
        label(*options, "--resume")
    assert sum(sizes[4:]) == 12 - 5
    assert out.read_bytes() == whole.read_bytes()
    assert label(*options, "--resume") == 1  # nothing is left, but two files have errors
    assert out.read_bytes() == whole.read_bytes()


def test_rows_are_continued_wherever_they_were_cut_off(tmp_path):
    odd = ["a,b", 'say "cheese"', "two\nlines", "ünï 花", " ", "line\u2028separator", "-1"]
    table = [["path", "label", "error"], *([name, name, ""] for name in odd)]
    cut = tmp_path / "cut.csv"

    def text_of(lines) -> bytes:
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(lines)
        return file.getvalue().encode()

    whole = text_of(table)
    counts = set()
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        done = resume_rows(cut, table[0])
        assert done == table[1 : 1 + len(done)]
        assert cut.read_bytes() == text_of(table[: 1 + len(done)]) or not done
        counts.add(len(done))
    assert counts == {*range(len(odd) + 1)}
    for line in ("", "5", "a,b,c,d"):
        cut.write_bytes(content := whole + f"{line}\n".encode())
        with pytest.raises(UserError, match="has other rows or columns"):
            resume_rows(cut, table[0])
        assert cut.read_bytes() == content


@cases("options", [], ["--flips", "--batch_size=1"])
def test_embeddings_are_what_the_head_sees_in_the_order_of_the_rows(
    checkpoint, photos, workplace, options
):
    files = ["--output=rows.csv", "--embeddings=rows.npy", "--probabilities"]
    label(checkpoint, photos, *files, *options)
    model, embeddings = ImageClassifier.load_from_checkpoint(checkpoint), np.load("rows.npy")
    written = rows(Path("rows.csv"))
    assert embeddings.dtype == np.float32
    assert embeddings.shape == (len(written), model.network_head.in_features)
    for row, embedding in zip(written, torch.from_numpy(embeddings), strict=True):
        assert embedding.isnan().all() == bool(row["error"])
        if not row["error"]:
            logits = by_torchvision(model, [row["path"]])[1][0]
            seen = model.network_head(embedding) / 8  # of a ResNet-9
            torch.testing.assert_close(seen.double(), logits, rtol=0, atol=1e-3)


def test_embeddings_are_not_mixed_with_earlier_ones(checkpoint, photos, workplace, capsys):
    Path("rows.npy").write_bytes(b"before")
    command = [checkpoint, photos, "--output=rows.csv", "--embeddings=rows.npy"]
    assert "is there already" in one_line(lambda: label(*command), capsys)
    line = one_line(lambda: label(*command, "--resume"), capsys)
    assert "no --embeddings" in line
    assert Path("rows.npy").read_bytes() == b"before"


def require_same_rows(path: Path, expected: Path) -> None:
    """Some CPUs multiply matrices of other heights by other instructions."""
    for row, other in zip(rows(path), rows(expected), strict=True):
        confidence = float(other.pop("confidence") or 0)
        assert float(row.pop("confidence") or 0) == pytest.approx(confidence)
        assert row == other


@pytest.mark.slow
def test_two_processes_write_the_embeddings_of_one(checkpoint, photos, workplace):
    label(checkpoint, photos, "--output=one.csv", "--embeddings=one.npy")
    options = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--batch_size=2"]
    files = ["--output=two.csv", "--embeddings=two.npy"]
    command = [*COMMAND, str(checkpoint), str(photos), *options, *files]
    surroundings: Any = {"cwd": workplace, "env": environment(), "timeout": 120}
    assert subprocess.run(command, capture_output=True, check=False, **surroundings).returncode == 1
    require_same_rows(Path("two.csv"), Path("one.csv"))
    np.testing.assert_allclose(np.load("two.npy"), np.load("one.npy"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_evaluate_writes_the_same_predictions_of_each_image(
    checkpoint, tmp_path, monkeypatch, processes
):
    root = make_folder(tmp_path / "images", dict.fromkeys(flowers(1, 1, 1).class_names, 9))
    options = [
        f"{checkpoint}",
        f"--data={root}",
        "--data.val_fraction=0.4",
        "--data.batch_size=6",
        *SMALL_FILES,
    ]
    options += [
        "--split=val",
        f"--output={tmp_path / 'metrics.json'}",
        f"--output_predictions={tmp_path / 'each.csv'}",
    ]
    if processes == 1:
        monkeypatch.setattr(
            ImageClassifier, "probabilities", lambda _, logits: (logits / 4).softmax(1)
        )
        evaluate(*options)
    else:
        parallel = ["--trainer.accelerator=cpu", "--trainer.devices=2"]
        succeed([sys.executable, "-m", "project.evaluate", *options, *parallel], tmp_path)
    found, metrics = (
        rows(tmp_path / "each.csv"),
        json.loads((tmp_path / "metrics.json").read_text()),
    )
    paths = [row["path"] for row in found]
    assert paths == sorted(set(paths))
    assert len(paths) == metrics["total"]
    label(checkpoint, *paths, f"--output={tmp_path / 'predict.csv'}")
    for row, labelled in zip(found, rows(tmp_path / "predict.csv"), strict=True):
        # some CPUs multiply matrices of other heights by other instructions
        assert float(row["confidence"]) == pytest.approx(float(labelled.pop("confidence")))
        assert row.items() >= labelled.items()
        assert row["true_label"] == Path(row["path"]).parent.name
        assert json.loads(row["correct"]) == (row["label"] == row["true_label"])
    assert sum(row["correct"] == "true" for row in found) == metrics["correct"]
    assert len({row["label"] for row in found}) > 1


def written_lines(path: Path) -> int:
    """How many lines a file has by now; the command makes and removes it once, to see that it can be written."""
    try:
        return path.read_text().count("\n")
    except FileNotFoundError:
        return 0


@pytest.mark.slow
def test_two_processes_write_the_rows_of_one_and_resume_after_a_kill(checkpoint, photos, tmp_path):
    label(checkpoint, photos, f"--output={tmp_path / 'one.csv'}")
    options = ["--batch_size=1", "--trainer.accelerator=cpu", "--output=rows.csv"]
    command = [*COMMAND, str(checkpoint), str(photos), *options, "--trainer.devices=2"]
    with started(command, tmp_path) as killed:
        wait_until(lambda: written_lines(tmp_path / "rows.csv") >= 3, tmp_path)
        killed.kill()
    listed = "".join(f"{row['path']}\n" for row in rows(tmp_path / "one.csv"))
    again = [*COMMAND, str(checkpoint), "-", *options, "--trainer.devices=2", "--resume"]
    surroundings: Any = {"cwd": tmp_path, "env": environment(), "timeout": 120, "check": False}
    resumed = subprocess.run(again, input=listed, capture_output=True, text=True, **surroundings)
    assert resumed.returncode == 1, resumed
    assert resumed.stderr.count("\n") == 1
    require_same_rows(tmp_path / "rows.csv", tmp_path / "one.csv")
    # all processes of a launcher end where nothing is left
    launched = torchrun(2, "project.predict", str(checkpoint), str(photos), *options, "--resume")
    assert "exitcode  : 1" in run(launched, tmp_path).err
    require_same_rows(tmp_path / "rows.csv", tmp_path / "one.csv")


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows(checkpoint, photos, tmp_path):
    out = tmp_path / "rows.csv"
    paths = [shutil.copy(photos / "1.png", f"{tmp_path}/{number}.png") for number in range(400)]
    options = [f"--output={out}", "--batch_size=1", "--trainer.accelerator=cpu", "--num_workers=1"]
    with started([*COMMAND, str(checkpoint), *paths, *options], tmp_path) as process:
        wait_until(lambda: written_lines(out) >= 4, tmp_path)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    written = (tmp_path / "log").read_text()
    assert written.endswith("stopped\n")
    assert "Traceback" not in written
    label(checkpoint, *paths, f"--output={out}", "--resume")
    assert [row["path"] for row in rows(out)] == paths


@cases(
    "option message",
    ("--output=no/folder.csv", "--output: 'no/folder.csv' cannot be written"),
    ("--resume", "--resume needs --output"),
    ("--trainer.devices=-2", "an int > 0"),
    ("--flips", "there are no images in"),
)
def test_a_mistake_is_one_line(checkpoint, workplace, option, message, capsys):
    assert message in one_line(lambda: label(checkpoint, workplace, option), capsys)
    assert not list(workplace.iterdir())
