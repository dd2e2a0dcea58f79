"""A checkpoint is read safely and whole, or refused in one line; a run then resumes from the one before it."""

import random
import re
import string
from pathlib import Path
from typing import Any

import pytest
import torch

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, AtomicCheckpointIO, read_checkpoint
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


def test_a_text_file_is_refused_whatever_it_says(tmp_path):
    path = tmp_path / "notes.ckpt"
    for first in string.printable:
        for rest in ("", "1\n2\n"):
            path.write_text(first + rest)
            with pytest.raises(UserError, match=r"notes\.ckpt' is damaged"):
                read_checkpoint(path)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_cut_short_anywhere_is_refused(tmp_path, legacy):
    path = saved(tmp_path / "short.ckpt", GOOD, _use_new_zipfile_serialization=not legacy)
    assert torch.equal(read_checkpoint(str(path))["state_dict"]["weight"], torch.arange(4.0))
    data = path.read_bytes()
    for length in range(0, len(data) - 1, 9):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"short\.ckpt' is damaged"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {}, "epoch": 1},
        {ABOUT: EXPLAINED},
        {ABOUT: {}, "state_dict": {}},
        [ABOUT, "state_dict"],
        torch.zeros(3),
    ],
    ids=lambda content: str(content)[:30],
)
def test_a_file_of_another_project_is_refused(tmp_path, content):
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
    content, dice, noticed = (whole / "checkpoints" / "last.ckpt").read_bytes(), random.Random(0), 0
    path, expected = tmp_path / "damaged.ckpt", load(whole / "checkpoints" / "last.ckpt")
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


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one_which_never_takes_its_place(
    workplace, whole, capsys, monkeypatch
):
    stop_at(6, EVERY_STEP)
    flip_a_weight(LAST)
    before = PREVIOUS.read_bytes()

    def fail(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", fail)  # the first one after the run resumes
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
