"""A labelling that is killed, interrupted, shared by processes or no longer read ends well, and is resumed to the same bytes."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from project.analysis.labelling import Labeller
from project.engine.errors import UserError
from tests.distributed.processes import environment, succeed, torchrun
from tests.predict.conftest import CPU, label, rows


class KilledError(Exception):
    pass


def kill_in_batch(number: int, *args: str | Path) -> None:
    """Runs the command to the middle of a batch, counted from 1."""
    own, seen = Labeller.predict_step, []

    def step(self, batch):
        seen.append(batch)
        if len(seen) == number:
            raise KilledError
        return own(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Labeller, "predict_step", step)
        with pytest.raises(KilledError):
            label(*args)


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_an_interrupted_command_is_resumed_to_the_same_bytes(checkpoint, photos, tmp_path, ending, monkeypatch):
    options = [checkpoint, photos, "--batch_size=2", "--top_k=2"]
    label(*options, f"--output={tmp_path / f'whole.{ending}'}")
    whole = (tmp_path / f"whole.{ending}").read_bytes()
    out = tmp_path / f"resumed.{ending}"
    kill_in_batch(4, *options, f"--output={out}")
    assert not out.exists()
    (partial,) = tmp_path.glob("resumed*partial")
    assert whole.startswith(partial.read_bytes())
    partial.write_bytes(partial.read_bytes()[:-9])  # as where the system dies: the third batch is not whole any more
    labelled: list[int] = []
    own = Labeller.predict_step

    def step(self, batch):
        labelled.append(len(batch.images))
        return own(self, batch)

    monkeypatch.setattr(Labeller, "predict_step", step)
    with pytest.raises(UserError, match=r"with --resume continues it, --overwrite begins anew"):
        label(*options, f"--output={out}")
    with pytest.raises(UserError, match=r"another checkpoint, --top_k or --flips"):
        label(*options, f"--output={out}", "--resume", "--flips")
    assert label(*options, f"--output={out}", "--resume") == 1
    assert out.read_bytes() == whole
    assert sum(labelled) == 11 - 4
    assert label(*options, f"--output={out}", "--resume") == 1  # finished: nothing is labelled again
    assert sum(labelled) == 11 - 4
    assert not list(tmp_path.glob("*partial"))


def test_rows_of_other_files_are_not_continued(checkpoint, photos, tmp_path):
    kill_in_batch(3, checkpoint, photos, "--batch_size=2", f"--output={tmp_path / 'rows.csv'}")
    shutil.copytree(photos, tmp_path / "photos")
    with pytest.raises(UserError, match=r"row 1 of '.*' is of '.*/1\.png', but the files now have"):
        label(checkpoint, tmp_path / "photos", "--batch_size=2", f"--output={tmp_path / 'rows.csv'}", "--resume")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_finished_file_is_of_the_same_files_and_columns(checkpoint, photos, tmp_path, ending):
    some, out = [photos / "1.png", photos / "3.png"], tmp_path / f"rows.{ending}"
    label(checkpoint, *some, f"--output={out}", "--top_k=2")
    before = out.read_bytes()
    for options in ([*some], [*some, photos / "5.png", "--top_k=2"]):
        with pytest.raises(UserError, match=r"is finished, but has not a row with these columns for each of the files"):
            label(checkpoint, *options, f"--output={out}", "--resume")
    with pytest.raises(UserError, match=r"row 2 of '.*' is of '.*3\.png', but there are fewer files now"):
        label(checkpoint, some[0], f"--output={out}", "--top_k=2", "--resume")
    assert out.read_bytes() == before
    assert label(checkpoint, *some, f"--output={out}", "--top_k=2", "--resume") == 0


def test_a_finished_file_says_what_was_compared_and_still_has_a_sheet(checkpoint, photos, tmp_path, capsys):
    options = [checkpoint, photos, f"--output={tmp_path / 'rows.csv'}", f"--sheet={tmp_path / 'sheet.png'}"]
    label(*options)
    drawn = (tmp_path / "sheet.png").read_bytes()
    (tmp_path / "sheet.png").unlink()
    capsys.readouterr()
    assert label(*options, "--resume") == 1
    assert (tmp_path / "sheet.png").read_bytes() == drawn
    said = capsys.readouterr().err
    assert (
        "rows.csv' has a row for each file already, 11 in all; which checkpoint and --flips they are of is not" in said
    )


HOLDER = """
import fcntl, sys

files = [open(path, "r+b") for path in sys.argv[1:]]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


def test_overwriting_leaves_alone_what_another_command_writes(checkpoint, photos, tmp_path):
    options = [checkpoint, photos, "--batch_size=2", f"--output={tmp_path / 'rows.csv'}"]
    kill_in_batch(3, *options)
    (own,) = tmp_path.glob("*partial")
    written, others = own.read_bytes(), [tmp_path / f"rows.csv.{key}.partial" for key in ("0ld", "0ther")]
    for other in others:
        other.write_bytes(b"begun")
    command = [sys.executable, "-c", HOLDER, str(own), str(others[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        with pytest.raises(UserError, match="another process writes"):
            label(*options, "--overwrite")
        assert [path.exists() for path in others] == [False, True]
        assert own.read_bytes() == written
    label(*options, "--overwrite")
    assert len(rows(tmp_path / "rows.csv")) == 11
    assert not list(tmp_path.glob("*partial"))


COMMAND = [sys.executable, "-m", "project.predict"]


def run(command: list[str], listed: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in that folder to its end, with paths on its standard input."""
    return subprocess.run(
        command, input=listed, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_two_processes_write_the_rows_of_one(checkpoint, photos, tmp_path):
    label(checkpoint, photos, "--top_k=2", f"--output={tmp_path / 'one.csv'}")
    listed = "\n".join(row["path"] for row in rows(tmp_path / "one.csv"))
    options = ["--batch_size=3", "--top_k=2", "--trainer.accelerator=cpu", "--trainer.devices=2", "--num_workers=1"]
    found = run([*COMMAND, str(checkpoint), "-", *options], listed, tmp_path)
    assert found.returncode == 1, found
    assert found.stdout == (tmp_path / "one.csv").read_text()
    assert found.stderr.count("\n") == 1
    assert "labelled 11 images" in found.stderr


@pytest.mark.slow
def test_all_processes_of_a_launcher_end_where_the_file_is_finished(checkpoint, photos, tmp_path):
    paths, out = [str(photos / "1.png"), str(photos / "3.png")], tmp_path / "rows.csv"
    label(checkpoint, *paths, f"--output={out}")
    before = out.read_bytes()
    options = ["--resume", f"--output={out}", "--trainer.accelerator=cpu", "--trainer.devices=2", "--num_workers=0"]
    succeed(torchrun(2, "project.predict", str(checkpoint), *paths, *options), tmp_path)
    assert out.read_bytes() == before


@pytest.mark.slow
def test_nobody_reads_on(checkpoint, photos, tmp_path):
    listed = "\n".join(1000 * [str(photos / "1.png")])
    shell = f"'{sys.executable}' -m project.predict '{checkpoint}' - --batch_size 4 {' '.join(CPU)} | head -n 3; echo $PIPESTATUS"
    found = run(["bash", "-c", shell], listed, tmp_path)
    assert found.stdout.splitlines()[-1] == "141"
    assert found.stderr == ""


@pytest.mark.slow
def test_ctrl_c_keeps_the_rows_and_the_exit_code(checkpoint, photos, tmp_path):
    command = [*COMMAND, str(checkpoint), "-", "--output=rows.csv", "--batch_size=1", *CPU[:2], "--num_workers=1"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    assert process.stdin is not None
    partial: list[Path] = []
    process.stdin.write(f"{photos / '1.png'}\n" * 20)
    process.stdin.flush()
    while not partial or partial[0].read_text().count("\n") < 4:  # the loader waits for more by then
        assert process.poll() is None
        partial = list(tmp_path.glob("rows.csv.*.partial"))
    process.send_signal(signal.SIGINT)
    _, written = process.communicate(timeout=60)
    assert process.returncode == 130
    assert written.endswith("stopped\n")
    assert "Traceback" not in written
    label(checkpoint, *20 * [photos / "1.png"], f"--output={tmp_path / 'rows.csv'}", "--resume")
    assert len({*map(str, rows(tmp_path / "rows.csv"))}) == 1
    assert len(rows(tmp_path / "rows.csv")) == 20


@pytest.mark.slow
def test_a_killed_command_is_resumed_to_the_same_bytes(checkpoint, photos, tmp_path):
    paths = [photos / f"{number}.png" for number in (1, 3, 5, 7)] * 25
    options = ["--batch_size=4", f"--output={tmp_path / 'rows.csv'}"]
    command = [*COMMAND, str(checkpoint), "-", *options, *CPU[:2], "--num_workers=1"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment())
    assert process.stdin is not None
    process.stdin.write("".join(f"{path}\n" for path in paths[:60]).encode())
    process.stdin.flush()  # and stays open, so that the command cannot come to its end
    partial: list[Path] = []
    while not partial or partial[0].read_text().count("\n") < 20:
        assert process.poll() is None
        partial = list(tmp_path.glob("rows.csv.*.partial"))
    process.kill()
    process.communicate()  # until its loader worker, which outlives it for a while, has closed standard error too
    assert process.returncode == -signal.SIGKILL
    assert label(checkpoint, *paths, *options, "--resume") == 0
    label(checkpoint, *paths, options[0], f"--output={tmp_path / 'whole.csv'}")
    assert (tmp_path / "rows.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(rows(tmp_path / "rows.csv")) == 100
