"""Labelling files: a row for each, in their order, none lost and none doubled, whatever ends it."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError

from tests.image_files import noise
from tests.predict import Labelling, label
from tests.processes import run, started, torchrun, wait_until
from tests.toy import ToyData, cases, load, one_line, rows, toy, toy_trainer

COMMAND = [sys.executable, "-m", "tests.predict"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A small network."""
    path: Path = tmp_path_factory.mktemp("checkpoint") / "some.ckpt"
    trainer = toy_trainer()
    trainer.fit(toy(Labelling), datamodule=ToyData())
    trainer.save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Nine images of several sizes, with two files among them that are none."""
    root: Path = tmp_path_factory.mktemp("photos")
    (root / "more").mkdir()
    for number in range(9):
        name = f"{number}.png" if number % 2 else f"more/{number}.png"
        noise(40 + 7 * number, 50, seed=number).save(root / name)
    (root / "2 notes.jpg").write_text("no image")
    (root / "more" / "empty.jpg").touch()
    return root


def test_resuming_labels_the_files_that_have_no_row(checkpoint, photos, workplace, capfd):
    strange = shutil.copy(photos / "1.png", os.fsdecode(b'line\nbreak, "caf\xe9".png'))
    options = [checkpoint, strange, photos, "--batch_size=2", "--top_k=2"]
    label(*options, "--output=whole.csv")
    assert rows("whole.csv")[0]["path"] == 'line\nbreak, "caf\\xe9".png'
    whole, out = Path("whole.csv").read_bytes(), Path("out.csv")
    label(*options)
    printed = capfd.readouterr()
    assert printed.out.encode() == whole
    assert "labelled 10 images; 2 cannot be read" in printed.err
    options.append(f"--output={out}")
    lines = whole.decode().splitlines(keepends=True)
    out.write_text("".join(lines[:7]) + lines[7][:9])  # five rows are whole
    with pytest.raises(UserError, match="--overwrite replaces it"):
        label(*options)
    with pytest.raises(UserError, match="has other rows or columns"):
        label(*options, "--resume", "--top_k=3")
    with pytest.raises(UserError, match="would have another row now"):
        label(*options, "--resume", "--abstain=1")
    *others, newest = [float(row["confidence"] or 1) for row in rows("whole.csv")[:5]]
    assert min(others) < newest
    with pytest.raises(UserError, match="would have another row now"):
        label(*options, "--resume", f"--abstain={(min(others) + newest) / 2}")
    assert out.read_text() == "".join(lines[:7])
    step = Labelling.predict_step
    with (
        patch("lightkeeper.cli._predict._COMPARED", 1),
        patch.object(Labelling, "predict_step", autospec=True, side_effect=step) as predicted,
    ):
        label(*options, "--resume")
    # of the five rows, the least sure and the newest are compared with what they would be now
    assert sum(len(call.args[1].images) for call in predicted.call_args_list) == 12 - 5 + 2
    assert out.read_bytes() == whole
    capfd.readouterr()
    assert label(*options, "--resume") == 1  # nothing is left, but two files have errors
    assert "labelled 10 images; 2 cannot be read" in capfd.readouterr().err
    assert out.read_bytes() == whole


def test_no_name_controls_the_terminal_and_a_file_has_it_as_it_is(
    checkpoint, photos, workplace, capfd
):
    content = load(checkpoint)
    names = [f"\x1b[2J\t\u202e{name}" for name in content["about"]["class_names"]]
    content["about"]["class_names"] = content["hyper_parameters"]["class_names"] = names
    torch.save(content, "names.ckpt")
    strange = shutil.copy(photos / "1.png", "a\x1b[31mb.png")
    options = ["names.ckpt", strange, "--shares"]
    label(*options)
    printed = capfd.readouterr().out
    assert all(character.isprintable() for line in printed.splitlines() for character in line)
    assert r"\x1b[2J\t\u202e" in printed
    label(*options, "--output=out.csv")
    (row,) = rows("out.csv")
    assert row["path"] == strange
    assert row["label"] in names
    assert {f"share_{name}" for name in names} <= row.keys()


def require_same(path: str, expected: str) -> None:
    """Compares rows; some CPUs multiply matrices of other heights by other instructions."""
    for row, other in zip(rows(path), rows(expected), strict=True):
        confidence = float(other.pop("confidence") or 0)
        assert float(row.pop("confidence") or 0) == pytest.approx(confidence)
        assert row == other


@pytest.mark.slow
def test_two_processes_write_what_one_does_and_resume_after_a_kill(checkpoint, photos, workplace):
    label(checkpoint, photos, "--output=one.csv", "--embeddings=one.npy")
    command = [*COMMAND, str(checkpoint), "--trainer.devices=2"]
    files = ["--batch_size=2", "--output=two.csv", "--embeddings=two.npy"]
    assert "2 cannot be read" in run([*command, str(photos), *files], workplace).err
    require_same("two.csv", "one.csv")
    np.testing.assert_allclose(np.load("two.npy"), np.load("one.npy"), rtol=1e-5, atol=1e-6)
    out = Path("rows.csv")
    command += [f"--output={out}", "--batch_size=1"]
    with started([*command, str(photos)], workplace) as killed:
        wait_until(lambda: out.exists() and out.read_text().count("\n") >= 3, workplace)
        killed.kill()
    listed = "".join(f"{row['path']}\n" for row in rows("one.csv"))
    Path("list.txt").write_text(listed)
    resumed = run(["sh", "-c", 'exec "$@" < list.txt', "", *command, "-", "--resume"], workplace)
    assert (resumed.code, resumed.err.count("\n")) == (1, 1)
    require_same("rows.csv", "one.csv")
    # all processes of a launcher end where nothing is left
    options = ["--trainer.devices=auto", "--resume"]
    ended = run(
        torchrun(2, "tests.predict", str(checkpoint), str(photos), f"--output={out}", *options),
        workplace,
    )
    assert "exitcode  : 1" in ended.err
    require_same("rows.csv", "one.csv")


def test_what_another_process_writes_is_left_alone(checkpoint, photos, workplace, capsys):
    Path("rows.csv").write_text("of before")
    hold = "import fcntl; file = open('rows.csv', 'a'); fcntl.lockf(file, fcntl.LOCK_EX); "
    command = [sys.executable, "-c", f"{hold}print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        again = partial(label, checkpoint, photos, "--output=rows.csv", "--overwrite")
        assert "another process is writing 'rows.csv'" in one_line(again, capsys)
        assert Path("rows.csv").read_text() == "of before"
        other.communicate(b"\n")
    again()
    paths = [row["path"] for row in rows("rows.csv")]
    assert len(paths) == len({*paths}) == 11


def test_embeddings_are_whole_or_not_there(checkpoint, photos, workplace, capsys, limit_files):
    shutil.copytree(photos, "photos")  # whose short paths make short rows
    Path("rows.npy").write_text("of before")
    limit_files(700)
    files = ["--output=rows.csv", "--embeddings=rows.npy", "--overwrite"]
    assert "File too large" in one_line(lambda: label(checkpoint, "photos", *files), capsys)
    assert [path.read_text() for path in Path().glob("*rows*.npy")] == ["of before"]
    assert len(rows("rows.csv")) == 11


@cases(
    "outputs found",
    ({"probabilities": torch.ones(1, 3)}, "dict"),
    (torch.ones(1), "float32 (1,)"),
    (torch.ones(1, 3).long(), "int64 (1, 3)"),
)
def test_a_step_that_returns_no_probabilities_is_one_line(
    checkpoint, photos, workplace, capsys, outputs, found
):
    with patch.object(Labelling, "predict_step", return_value=outputs):
        line = one_line(lambda: label(checkpoint, photos / "1.png", "--output=out.csv"), capsys)
    assert f"must return probabilities, float (N, classes), here (1, 3), got {found}" in line


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows(checkpoint, photos, workplace):
    out = Path("rows.csv")
    paths = [shutil.copy(photos / "1.png", f"{number}.png") for number in range(400)]
    options = [f"--output={out}", "--batch_size=1", "--num_workers=1"]
    with started([*COMMAND, str(checkpoint), *paths, *options], workplace) as process:
        wait_until(lambda: out.exists() and out.read_text().count("\n") >= 4, workplace)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert Path("log").read_text().splitlines()[-1:] == ["stopped"]
    label(checkpoint, *paths, f"--output={out}", "--resume")
    assert [row["path"] for row in rows(out)] == paths


@cases(
    "options message",
    (["--output=no/folder.csv"], "parent directory does not exist"),
    (["--resume"], "--resume needs --output"),
    (["--resume", "--output=a.csv", "--embeddings=a.npy"], "it cannot continue --embeddings"),
    (["--resume", "--output=a.csv", "--overwrite"], "nor --overwrite what it continues"),
    (["--output=a.csv", "--embeddings=a.csv"], "--output: must be a file that no other"),
    ([], "there are no images in"),
)
def test_a_mistake_is_one_line(checkpoint, workplace, options, message, capsys):
    assert message in one_line(lambda: label(checkpoint, workplace, *options), capsys)
    assert not list(workplace.iterdir())
