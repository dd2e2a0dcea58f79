"""A checkpoint appears whole or not at all, on a full disk too."""

import errno
import os
from pathlib import Path

import pytest
import torch

from project.engine.run.checkpoint import AtomicCheckpointIO
from project.engine.run.files import hard_link
from tests.small import load, one_line, require_same_end, small, stop_at
from tests.stress import outcome

FULL = Path("/dev/full")
CHECKPOINTS = Path("runs/run/checkpoints")


def save(content: object, path: Path) -> None:
    AtomicCheckpointIO(path.parent).save_checkpoint({"content": content}, path)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def fill_disk(patch: pytest.MonkeyPatch, name: str) -> None:
    """Lets the disk be full for checkpoints of this name."""
    full = lambda path, mode: open(FULL if path.name == f".{name}.partial.ckpt" else path, mode)  # noqa: E731, SIM115
    patch.setattr("project.engine.run.checkpoint.open", full, raising=False)


@pytest.mark.parametrize("when", ["save", "fsync"])
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, when):
    path = tmp_path / "last.ckpt"
    save(1, path)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr({"save": torch, "fsync": os}[when], when, interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(2, path)
    assert load(path) == {"content": 1}
    assert names(tmp_path) == ["last.ckpt"]


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    path, seen, sync = tmp_path / "last.ckpt", [], os.fsync

    def witness(descriptor):
        seen.append((os.fstat(descriptor).st_size > 0 and os.path.isfile(descriptor), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", witness)
    save(1, path)
    assert seen == [(True, False), (False, True)]  # the file, then its folder


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "none"])
def test_the_earlier_file_is_kept_under_another_name(tmp_path, monkeypatch, links):
    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    path, earlier = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for left in (".last.partial.ckpt", ".previous.ckpt.partial"):  # by a killed process
        (tmp_path / left).write_text("a part")
    for number in range(3):
        hard_link(path, "previous.ckpt")
        assert path.exists() == (links and number > 0)
        save(number, path)
        assert load(path) == {"content": number}
        assert not earlier.exists() if number == 0 else load(earlier) == {"content": number - 1}
    assert names(tmp_path) == ["last.ckpt", "previous.ckpt"]


def test_files_written_elsewhere_can_be_replaced(tmp_path):
    io = AtomicCheckpointIO(tmp_path / "run")
    io.save_checkpoint({}, tmp_path / "elsewhere" / "old.ckpt")
    for name in ("elsewhere/theirs.ckpt", "run/own.ckpt", "run/config.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "run" / "link.ckpt").symlink_to(tmp_path / "elsewhere" / "theirs.ckpt")
    for name in ("elsewhere/old", "elsewhere/theirs", "run/own", "run/link"):
        io.remove_checkpoint(tmp_path / f"{name}.ckpt")
    for name in ("run/config.yaml", "run"):
        io.remove_checkpoint(tmp_path / name)
    assert {path.name for path in tmp_path.rglob("*.*")} == {"theirs.ckpt", "config.yaml", "link.ckpt"}


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_run_resumes_after_the_disk_was_full(workplace, capsys, name):
    small("--trainer.default_root_dir=whole")
    stop_at(3, "--callbacks.last_checkpoint.every_n_steps=2")
    before = (CHECKPOINTS / "last.ckpt").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        fill_disk(patch, name)
        said = one_line(lambda: small("--callbacks.last_checkpoint.every_n_steps=1"), capsys)
    assert "cannot write: No space left on device; make room; to resume, run the same command with --name run" in said
    assert names(CHECKPOINTS) == ["last.ckpt", "previous.ckpt"]
    assert name == "best" or (CHECKPOINTS / "last.ckpt").read_bytes() == before
    small()
    require_same_end(Path("runs/run"), outcome(Path("whole/run")))
