"""A checkpoint appears whole or not at all, on a full disk too."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch

from project.engine.run.checkpoint_io import AtomicCheckpointIO, hard_link
from tests.small import load, one_line, require_same_end, small, stop_at
from tests.stress import differences, outcome

FULL = Path("/dev/full")
CHECKPOINTS = Path("runs/run/checkpoints")

needs_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")


@pytest.mark.parametrize("earlier", [None, {"weights": torch.ones(3)}])
def test_a_checkpoint_is_written_whole_and_alone(tmp_path, earlier):
    path = tmp_path / "new folder" / "last.ckpt"
    if earlier is not None:
        AtomicCheckpointIO().save_checkpoint(earlier, path)
    AtomicCheckpointIO().save_checkpoint({"weights": torch.arange(5)}, path)
    assert differences(load(path), {"weights": torch.arange(5)}) == []
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


@needs_a_full_disk
@pytest.mark.parametrize("size", [3, 10**6], ids=["small", "large"])
def test_a_full_disk_leaves_the_earlier_file_and_nothing_else(tmp_path, size):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(3)}, path)
    before = path.read_bytes()
    (tmp_path / ".last.ckpt.partial").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left") as caught:
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(size)}, path)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("when", ["save", "fsync"])
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, when):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(3)}, path)
    before = path.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr({"save": torch, "fsync": os}[when], when, interrupt)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(3)}, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    path, seen, sync = tmp_path / "last.ckpt", [], os.fsync

    def witness(descriptor):
        seen.append((os.fstat(descriptor).st_size > 0 and os.path.isfile(descriptor), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", witness)
    AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(3)}, path)
    assert seen == [(True, False), (False, True)]  # the file, then its folder


def test_a_file_with_a_second_name_keeps_it_when_the_first_is_written_anew(tmp_path):
    path, other = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for number in range(3):
        hard_link(path, "previous.ckpt")
        AtomicCheckpointIO().save_checkpoint({"number": number}, path)
        assert load(path) == {"number": number}
        assert not other.exists() if number == 0 else load(other) == {"number": number - 1}
    hard_link(path, "previous.ckpt")
    assert other.samefile(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]


def test_a_file_system_without_second_names_keeps_the_earlier_file_too(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    for number in range(3):
        hard_link(tmp_path / "last.ckpt", "previous.ckpt")
        AtomicCheckpointIO().save_checkpoint({"number": number}, tmp_path / "last.ckpt")
        assert load(tmp_path / "last.ckpt") == {"number": number}
    assert load(tmp_path / "previous.ckpt") == {"number": 1}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]


def test_what_a_killed_process_left_is_no_obstacle(tmp_path):
    path = tmp_path / "last.ckpt"
    for left in (".last.ckpt.partial", ".previous.ckpt.partial"):
        (tmp_path / left).write_text("a part")
    AtomicCheckpointIO().save_checkpoint({"number": 1}, path)
    hard_link(path, "previous.ckpt")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]


@needs_a_full_disk
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_disk_that_fills_up_ends_a_run_which_then_goes_on(workplace, capsys, monkeypatch, name):
    small("--trainer.default_root_dir=whole")
    stop_at(3, "--callbacks.last_checkpoint.every_n_steps=2")
    before = {path.name: path.read_bytes() for path in CHECKPOINTS.iterdir()}
    with monkeypatch.context() as patch:
        full = lambda path, mode: open(FULL if path.name == f".{name}.ckpt.partial" else path, mode)  # noqa: E731, SIM115
        patch.setattr("project.engine.run.checkpoint_io.open", full, raising=False)
        said = one_line(lambda: small("--callbacks.last_checkpoint.every_n_steps=1"), capsys)
    assert "cannot write: No space left on device; make room; to resume, run the same command with --name run" in said
    after = {path.name: path.read_bytes() for path in CHECKPOINTS.iterdir()}
    assert set(after) == {"last.ckpt", "previous.ckpt"}
    if name == "last":
        assert after["last.ckpt"] == before["last.ckpt"]
    small()
    require_same_end(Path("runs/run"), outcome(Path("whole/run")))


def test_a_limit_on_the_size_of_files_is_one_line_that_names_the_file(tmp_path, capsys):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        path = tmp_path / "last.ckpt"
        said = one_line(lambda: AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(100_000)}, path), capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert said.startswith(f"error: cannot write '{path}': File too large; raise the limit (ulimit -f)")
    assert list(tmp_path.iterdir()) == []
