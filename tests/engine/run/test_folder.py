"""A run's folder: its names, its lock, and its mark of a finished run."""

import errno
import json
import os
import platform
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from project.engine.errors import UserError
from project.engine.run.folder import RunFolder
from tests.conftest import cases
from tests.distributed.processes import fork, wait


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "runs", "first try")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/", "/", "/tmp", "../a", "a/.."])
def test_a_name_that_is_not_one_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="must be the name of one folder"):
        RunFolder(tmp_path, name)


@pytest.mark.parametrize("name", ["with space", "Größe", "...", ".hidden", "é" * 127 + "x"])
def test_any_other_name_is_a_folder_in_the_root_with_nothing_but_checkpoints_and_a_lock(tmp_path, monkeypatch, name):
    for _ in range(2):
        RunFolder(tmp_path, name).create()
        assert files(tmp_path) == {name, f"{name}/checkpoints", f"{name}/.lock"}
        # a file system without locks is no obstacle
        monkeypatch.setattr("fcntl.lockf", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))


def test_a_folder_with_a_checkpoint_or_of_someone_else_is_not_discarded(tmp_path, run):
    run.create()
    run.last.write_text("weights")
    assert not run.discard()
    again = RunFolder(tmp_path / "runs", "first try")
    again.create()
    assert run.last.read_text() == "weights"
    run.last.unlink()
    assert not again.discard()
    (tmp_path / "runs" / "other").mkdir()
    assert run.discard()
    assert files(tmp_path / "runs") == {"other"}


@pytest.mark.parametrize("obstacle", ["runs", "runs/first try", "runs/first try/checkpoints"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, run, obstacle):
    (tmp_path / obstacle).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / obstacle).write_text("in the way")
    with pytest.raises(UserError, match=r"first try' cannot be written .*--trainer\.default_root_dir"):
        run.create()


@cases("name", "config.yaml", ".metrics.partial.json", ".lock", "checkpoints/last.ckpt", "checkpoints")
def test_a_link_that_leads_out_of_a_run_is_not_followed(tmp_path, run, name):
    victim = tmp_path / "victim"
    victim.mkdir() if name == "checkpoints" else victim.write_text("theirs")
    (run.path / name).parent.mkdir(parents=True)
    (run.path / name).symlink_to(victim)
    with pytest.raises(UserError, match=rf"{name}' is a link that leads out of the run's folder"):
        run.create()
    assert victim.is_dir() or victim.read_text() == "theirs"


def test_a_run_is_finished_when_its_metrics_are_written(run):
    metrics = {"test": {"accuracy": 0.1 + 0.2, "classes": ["日本", "b"], "counts": [[1, 2], [3, 4]]}, "val": None}
    run.create()
    for path in (run.best, run.last, run.previous):
        path.write_text("weights")
    run.require_unfinished()
    run.write_metrics(metrics)
    assert json.loads(run.metrics.read_text()) == metrics
    assert files(run.path) == {"checkpoints", "checkpoints/best.ckpt", "checkpoints/last.ckpt", "metrics.json"}
    for refused in (run.require_unfinished, lambda: run.create()):
        with pytest.raises(UserError, match=r"first try' is finished, its test set measured"):
            refused()


def test_a_folder_in_which_another_process_trains_is_refused_until_that_ends(run):
    reading, writing = os.pipe()

    def hold() -> None:
        run.create()
        os.write(writing, b"held")
        signal.pause()

    holder = fork(hold, {})
    os.close(writing)
    with open(reading, "rb") as pipe:
        assert pipe.read(4) == b"held"
        for _ in range(2):
            with pytest.raises(UserError, match=rf"trained by process {holder.pid} on .*; choose another --name"):
                run.create()
        holder.kill()
        assert wait([holder]) == [-signal.SIGKILL]
    run.create()  # over what the other wrote into the lock
    assert (run.path / ".lock").read_text() == f"process {os.getpid()} on {platform.node()}\n"
