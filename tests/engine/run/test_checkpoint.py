"""A checkpoint is read safely and whole, or refused in one line."""

import os
import pickle
import string
from typing import Any

import pytest
import torch

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, read_checkpoint

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


class Malicious:
    """Creates a file when it is unpickled without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


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


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")  # torch, of what was not written by torch.save
@pytest.mark.parametrize("write", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("wrap", [lambda bad: bad, lambda bad: GOOD | {"extra": bad}])
def test_nothing_that_a_checkpoint_says_is_executed(tmp_path, write, wrap):
    content, path = wrap(Malicious(tmp_path / "executed")), tmp_path / "bad.ckpt"
    if write == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        saved(path, content, _use_new_zipfile_serialization=write == "zip")
    with pytest.raises(UserError, match=r"bad\.ckpt'.* read safely") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    pickle.loads(path.read_bytes()) if write == "pickle" else torch.load(path, weights_only=False)  # do harm
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {}, "epoch": 1},
        {"weight": torch.zeros(2)},
        {ABOUT: {}},
        GOOD | {ABOUT: EXPLAINED | {"preprocessing": {"crop": "32"}}},
        GOOD | {ABOUT: EXPLAINED | {"preprocessing": EXPLAINED["preprocessing"] | {"fit": "stretch"}}},
        [ABOUT, "state_dict"],
        torch.zeros(3),
        "state_dict",
    ],
    ids=lambda content: str(content)[:30],
)
def test_a_file_of_another_project_is_refused(tmp_path, content):
    with pytest.raises(UserError, match=r"foreign\.ckpt' was not written by this project"):
        read_checkpoint(saved(tmp_path / "foreign.ckpt", content))
