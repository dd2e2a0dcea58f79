"""A checkpoint is written whole or not at all, and read safely or refused in one line; a run then resumes from the one before."""

import os
import random
import re
import string
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, AtomicCheckpointIO, read_checkpoint
from project.engine.run.files import hard_link
from tests.small import load, one_line, require_same_end, small, stop_at
from tests.stress import differences, outcome

EXPLAINED: dict[str, Any] = {
    "class_names": ["a", "b"],
    "epoch": 3,
    "step": 8,
    "arch": "resnet18",
    "arch_args": {"stem": "cifar"},
    "metrics": {},
    "preprocessing": {"resize": 32, "crop": 32, "mean": [0.5] * 3, "std": [0.25] * 3},
    "data": {"class_path": "Data", "init_args": {}},
}
GOOD: dict[str, Any] = {ABOUT: EXPLAINED, "state_dict": {"weight": torch.arange(4.0)}}

CHECKPOINTS = Path("runs/run/checkpoints")
LAST, PREVIOUS = CHECKPOINTS / "last.ckpt", CHECKPOINTS / "previous.ckpt"
EVERY_STEP = "--callbacks.last_checkpoint.every_n_steps=1"


def saved(path, content, **options):
    torch.save(content, path, **options)
    return path


@pytest.mark.parametrize("name", ["missing.ckpt", "no folder/last.ckpt", "folder"])
def test_a_path_that_is_no_file_is_named(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=rf"there is no .*'.*{name}'"):
        read_checkpoint(tmp_path / name)


@pytest.mark.parametrize("kind", ["text", "zip", "legacy"])
def test_a_text_or_a_file_cut_short_anywhere_is_refused(tmp_path, kind):
    path = tmp_path / "some.ckpt"
    contents = [text.encode() for first in string.printable for text in (first, f"{first}1\n2\n")]
    if kind != "text":
        saved(path, GOOD, _use_new_zipfile_serialization=kind == "zip")
        assert torch.equal(read_checkpoint(str(path))["state_dict"]["weight"], torch.arange(4.0))
        data = path.read_bytes()
        contents = [data[:length] for length in range(0, len(data) - 1, 9)]
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"some\.ckpt' is damaged"):
            read_checkpoint(path)


def test_a_file_of_another_project_is_refused(tmp_path):
    without: list[Any] = [{"state_dict": {}, "epoch": 1}, {ABOUT: EXPLAINED}, {ABOUT: {}, "state_dict": {}}]
    for content in [*without, [ABOUT, "state_dict"], torch.zeros(3)]:
        with pytest.raises(UserError, match=r"foreign\.ckpt' was not written by this project"):
            read_checkpoint(saved(tmp_path / "foreign.ckpt", content))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run that nobody disturbed."""
    place: Path = tmp_path_factory.mktemp("undisturbed")
    small(f"--trainer.default_root_dir={place}")
    return place / "run"


def flip(path: Path, bit: int) -> None:
    """Changes one bit of a file; a hard link to it stays as it was."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.unlink()
    path.write_bytes(content)


def test_damage_is_noticed_or_has_changed_nothing(tmp_path, whole):
    path, last = tmp_path / "damaged.ckpt", whole / "checkpoints" / "last.ckpt"
    content, expected, dice, noticed = last.read_bytes(), load(last), random.Random(0), 0
    for _ in range(400):
        path.write_bytes(content)
        flip(path, dice.randrange(8 * len(content)))
        try:
            assert differences(expected, read_checkpoint(path)) == []
        except UserError:
            noticed += 1
    assert noticed > 150


def flip_a_weight(path: Path) -> None:
    """Changes one bit of a weight, which ``torch.load`` does not notice."""
    weight = load(path)["state_dict"]["network.fc.weight"]
    flip(path, 8 * path.read_bytes().index(weight.numpy().tobytes()) + 20)
    assert not torch.equal(load(path)["state_dict"]["network.fc.weight"], weight)


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one_and_keeps_it(workplace, whole, capsys, monkeypatch):
    stop_at(6, EVERY_STEP)
    flip_a_weight(LAST)
    before = PREVIOUS.read_bytes()
    with monkeypatch.context() as patch:
        # the first one after the run resumes
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(SystemExit):
            small(EVERY_STEP)
    assert PREVIOUS.read_bytes() == before
    capsys.readouterr()
    small(EVERY_STEP)
    said = capsys.readouterr().err
    assert re.search(rf"'{LAST}' is damaged.*looking for the one before it.*in epoch 2 after step 5", said, re.S)
    require_same_end(Path("runs/run"), outcome(whole))


def test_two_damaged_checkpoints_are_an_error_of_one_line(workplace, capsys):
    stop_at(3, EVERY_STEP)
    for path in (LAST, PREVIOUS):
        flip_a_weight(path)
    assert "is damaged" in one_line(small, capsys)
    assert not (CHECKPOINTS.parent / "metrics.json").exists()


def save(content: object, path: Path) -> None:
    AtomicCheckpointIO(path.parent).save_checkpoint({"content": content}, path)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("when", ["torch.save", "os.fsync"])
def test_an_interrupted_write_leaves_the_earlier_file_and_nothing_else(tmp_path, monkeypatch, when):
    path = tmp_path / "last.ckpt"
    save(1, path)
    monkeypatch.setattr(when, Mock(side_effect=KeyboardInterrupt))
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
    if not links:
        monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    path, earlier = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    for left in (".last.partial.ckpt", ".previous.ckpt.partial"):  # by a killed process
        (tmp_path / left).write_text("a part")
    for number in range(3):
        for _ in range(2):  # where a process was killed while it wrote the file, the next one links again
            hard_link(path, "previous.ckpt")
        assert path.exists() == (links and number > 0)
        save(number, path)
        assert load(path) == {"content": number}
        assert not earlier.exists() if number == 0 else load(earlier) == {"content": number - 1}
        assert names(tmp_path) == (
            ["last.ckpt", "previous.ckpt"] if number else [".previous.ckpt.partial", "last.ckpt"]
        )


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_run_resumes_after_the_disk_was_full(workplace, whole, monkeypatch, capsys, name):
    stop_at(3, "--callbacks.last_checkpoint.every_n_steps=2")
    before = LAST.read_bytes()

    def full_for_this(path, mode):
        return open("/dev/full" if path.name == f".{name}.partial.ckpt" else path, mode)

    with monkeypatch.context() as patch:
        patch.setattr("project.engine.run.checkpoint.open", full_for_this, raising=False)
        said = one_line(lambda: small(EVERY_STEP), capsys)
    assert "cannot write: No space left on device; make room; to resume, run the same command with --name run" in said
    assert names(CHECKPOINTS) == ["last.ckpt", "previous.ckpt"]
    assert name == "best" or LAST.read_bytes() == before
    small()
    require_same_end(Path("runs/run"), outcome(whole))
