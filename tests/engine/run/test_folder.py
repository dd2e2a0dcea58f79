import errno
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from project.engine.errors import UserError
from project.engine.run.folder import RunFolder, derived_name

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "runs", "first try")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a/", "/", "/tmp", "../a", "a/.."])
def test_a_name_that_is_not_one_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="must be the name of one folder"):
        RunFolder(tmp_path, name)


def test_an_address_is_no_folder():
    with pytest.raises(UserError, match=r"--trainer.default_root_dir must be a folder of this machine.*s3://bucket"):
        RunFolder("s3://bucket/runs", "a")


@pytest.mark.parametrize("name", ["a", "with space", "2025-01-31", "Größe", "a.b", "...", ".hidden"])
def test_any_other_name_is_a_folder_in_the_root(tmp_path, name):
    run = RunFolder(tmp_path, name)
    run.create(0)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_it_made_can_be_discarded_with_the_one_above(tmp_path, run):
    run.create(0)
    run.config.write_text("")
    assert run.discard()
    assert list(tmp_path.iterdir()) == []
    assert not run.discard()


def test_a_folder_with_a_checkpoint_or_of_someone_else_is_not_discarded(tmp_path, run):
    run.create(0)
    run.last.touch()
    assert not run.discard()
    run.last.unlink()
    again = RunFolder(tmp_path / "runs", "first try")
    again.create(0)
    assert not again.discard()
    (tmp_path / "runs" / "other").mkdir()
    assert run.discard()
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["other"]


def test_all_its_files_lie_inside(run):
    for path in (run.config, run.metrics, run.checkpoints, run.best, run.last):
        assert path.is_relative_to(run.path)
    assert len({run.config, run.metrics, run.best, run.last}) == 4


def test_creating_makes_the_checkpoint_folder_and_a_lock_and_leaves_nothing_else(run):
    for _ in range(2):
        run.create(0)
        assert {path.name for path in run.path.rglob("*")} == {"checkpoints", ".lock"}


def test_creating_again_keeps_what_is_there(run):
    run.create(0)
    run.last.write_text("weights")
    run.create(0)
    assert run.last.read_text() == "weights"


@pytest.mark.parametrize("obstacle", ["runs", "runs/first try", "runs/first try/checkpoints"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, run, obstacle):
    (tmp_path / obstacle).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / obstacle).write_text("in the way")
    with pytest.raises(UserError, match=r"first try' cannot be written .*--trainer\.default_root_dir"):
        run.create(0)


def test_a_disk_that_is_too_full_is_reported_with_what_is_needed(run, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    run.create(5_000_000)
    with pytest.raises(UserError, match="has room for 5 MB, but checkpoints take 6 MB"):
        run.create(6_000_000)


def test_a_run_is_finished_when_its_figures_are_written(run):
    run.create(0)
    run.require_unfinished()
    run.best.write_text("weights")
    run.require_unfinished()
    run.write_metrics({"test": {"accuracy": 0.5}})
    with pytest.raises(UserError, match=r"first try' is finished, its test set measured"):
        run.require_unfinished()


def test_figures_are_written_as_json_and_nothing_else_is_left(run):
    metrics = {"test": {"accuracy": 0.1 + 0.2, "classes": ["日本", "b"], "counts": [[1, 2], [3, 4]]}, "val": None}
    run.create(0)
    run.write_metrics(metrics)
    assert json.loads(run.metrics.read_text()) == metrics
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "metrics.json"]


@pytest.mark.parametrize("broken", ["write_text", "replace"])
def test_a_run_is_not_finished_by_figures_that_were_not_written_whole(run, monkeypatch, broken):
    run.create(0)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, broken, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.write_metrics({"test": 1})
    run.require_unfinished()
    assert not run.metrics.exists()


HOLD = """
import sys
from project.engine.run.folder import RunFolder

RunFolder(*sys.argv[1:]).create(0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(run):
    """A process that trains in the run's folder."""
    command = [sys.executable, "-c", HOLD, str(run.path.parent), run.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_folder_in_which_another_process_trains_is_refused_until_that_ends(run, holder):
    for _ in range(2):
        with pytest.raises(UserError, match=rf"is being trained by process {holder.pid} on .*; choose another --name"):
            run.create(0)
    holder.kill()
    holder.wait()
    run.create(0)


def test_a_lock_that_nobody_holds_is_no_obstacle(run):
    run.path.mkdir(parents=True)
    lock = run.path / ".lock"
    lock.write_text("process 1 on another machine with a long name\n")
    run.create(0)
    assert lock.read_text() == f"process {os.getpid()} on {platform.node()}\n"


def test_a_file_system_without_locks_is_no_obstacle(run, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    run.create(0)


def test_a_run_that_was_finished_just_now_is_not_trained_again(run):
    run.create(0)
    run.write_metrics({})
    with pytest.raises(UserError, match="is finished"):
        run.create(0)


def test_a_finished_run_keeps_neither_its_lock_nor_the_checkpoint_before_the_last(run):
    run.create(0)
    for path in (run.best, run.last, run.previous):
        path.write_text("weights")
    run.write_metrics({})
    left = {path.name for path in run.path.rglob("*") if path.is_file()}
    assert left == {"best.ckpt", "last.ckpt", "metrics.json"}


def test_a_derived_name_tells_data_model_and_time_apart():
    now = datetime(2025, 1, 31, 14, 25, 1)
    kinds = {
        derived_name(data, arch, when)
        for data in ("FlowersDataModule", "CIFAR10DataModule", "MyPictures")
        for arch in ("resnet18", "resnet50")
        for when in (now, now + timedelta(seconds=1), now + timedelta(days=365))
    }
    assert len(kinds) == 18
    assert "flowers-resnet18-20250131-142501" in kinds
    for name in kinds:
        assert RunFolder("runs", name).path == Path("runs") / name


def test_a_name_may_be_as_long_as_a_folders(tmp_path):
    run = RunFolder(tmp_path, "é" * 127 + "x")
    run.create(needed_bytes=0)
    assert run.path.is_dir()
