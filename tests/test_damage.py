"""A damaged checkpoint is noticed before it is used, and the one before it takes its place."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from project.engine.errors import UserError
from project.engine.run.checkpoint import AtomicCheckpointIO, read_checkpoint
from tests.small import load, one_line, require_same_end, small, stop_at
from tests.stress import differences, outcome

CHECKPOINTS = Path("runs/run/checkpoints")
LAST, PREVIOUS = CHECKPOINTS / "last.ckpt", CHECKPOINTS / "previous.ckpt"
EVERY_STEP = "--callbacks.last_checkpoint.every_n_steps=1"


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """The last checkpoint of a finished run."""
    place: Path = tmp_path_factory.mktemp("real")
    small("--trainer.max_epochs=1", f"--trainer.default_root_dir={place}")
    return place / "run" / "checkpoints" / "last.ckpt"


def require_noticed(path: Path, content: bytes, expected: Any) -> bool:
    """Whether damage is noticed; where it is not, it must have changed nothing."""
    path.write_bytes(content)
    try:
        read = read_checkpoint(path)
    except UserError:
        return True
    assert differences(expected, read) == []
    return False


def test_damage_is_noticed_or_has_changed_nothing(tmp_path, real):
    content, expected, dice = real.read_bytes(), load(real), random.Random(0)
    path = tmp_path / "damaged.ckpt"
    bits = [dice.randrange(8 * len(content)) for _ in range(400)]
    assert sum(require_noticed(path, flipped(content, bit), expected) for bit in bits) > 150


def flip_in_the_middle(path: Path) -> None:
    """Changes one bit of a weight, which ``torch.load`` does not notice."""
    content, weight = path.read_bytes(), load(path)["state_dict"]["network.fc.weight"]
    path.unlink()  # the other name of the file, if it has one, stays whole
    path.write_bytes(flipped(content, 8 * content.index(weight.numpy().tobytes()) + 20))
    assert not torch.equal(load(path)["state_dict"]["network.fc.weight"], weight)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, Any]:
    """How an undisturbed run ends."""
    place: Path = tmp_path_factory.mktemp("undisturbed")
    small(f"--trainer.default_root_dir={place}")
    return outcome(place / "run")


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(workplace, capsys, expected):
    stop_at(6, EVERY_STEP)
    flip_in_the_middle(LAST)
    small(EVERY_STEP)
    said = capsys.readouterr().err
    assert re.search(rf"'{LAST}' is damaged.*looking for the one before it.*in epoch 2 after step 5", said, re.S)
    require_same_end(Path("runs/run"), expected)


def test_a_damaged_checkpoint_never_takes_the_place_of_a_whole_one(workplace, monkeypatch, expected):
    stop_at(6, EVERY_STEP)
    flip_in_the_middle(LAST)
    before = PREVIOUS.read_bytes()

    def fail(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", fail)  # the first one after the run resumes
        with pytest.raises(SystemExit):
            small(EVERY_STEP)
    assert PREVIOUS.read_bytes() == before
    small()
    require_same_end(Path("runs/run"), expected)


def test_two_damaged_checkpoints_are_an_error_of_one_line(workplace, capsys):
    stop_at(3, EVERY_STEP)
    for path in (LAST, PREVIOUS):
        flip_in_the_middle(path)
    assert "is damaged" in one_line(small, capsys)
    assert not (CHECKPOINTS.parent / "metrics.json").exists()
