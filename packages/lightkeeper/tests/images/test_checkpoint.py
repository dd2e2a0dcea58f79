"""A checkpoint is read safely or refused in one line, and the one before it helps; nothing that it names is imported."""

import os
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import pytest
import torch
from lightkeeper.exact import AtomicCheckpointIO, UserError
from lightkeeper.images._checkpoint import ABOUT, read_checkpoint, read_weights
from lightkeeper.images._layout import cpu_limit
from lightkeeper.images._settings import (
    allow_module,
    imported_class,
    network_of_file,
    plain_options,
)
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from tests.toy import (
    LAST,
    PREPROCESSING,
    RUN,
    ToyClassifier,
    cases,
    differences,
    fit,
    load,
    one_line,
    outcome,
    read_json,
    require_same_end,
    stop_at,
)

PREVIOUS = LAST.with_name("previous.ckpt")
EVERY_STEP = "--callbacks.last_checkpoint.every_n_steps=1"


@pytest.mark.parametrize("read", [read_checkpoint, read_weights])
@pytest.mark.parametrize("name", ["missing.ckpt", "no folder/last.ckpt", "folder", "pipe"])
def test_a_path_that_is_no_file_is_named(tmp_path, read, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # which would be waited for
    with pytest.raises(UserError, match=rf"there is no .*'.*{name}'"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [
        {"state_dict": {}, "epoch": 1},
        {ABOUT: {}, "state_dict": {}},
        [ABOUT, "state_dict"],
        torch.zeros(3),
    ],
)
def test_a_file_of_another_project_is_refused(tmp_path, content):
    torch.save(content, path := tmp_path / "foreign.ckpt")
    with pytest.raises(UserError, match=r"foreign\.ckpt' was not written by this project"):
        read_checkpoint(path)


def test_a_version_of_any_length_takes_no_time(whole, tmp_path):
    content = load(whole / "checkpoints" / "best.ckpt")
    content["pytorch-lightning_version"] = "2." + "1." * 100_000
    torch.save(content, path := tmp_path / "long.ckpt")
    slow = cpu_limit(5, TimeoutError("the search takes too long"))
    with slow, pytest.raises(UserError, match="must be a version"):
        read_checkpoint(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of a run that nobody disturbed."""
    root: Path = tmp_path_factory.mktemp("undisturbed")
    fit(f"--trainer.default_root_dir={root}")
    return root / "run"


def flip(path: Path, bit: int) -> None:
    """Changes one bit of a file."""
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_damage_is_noticed_or_has_changed_nothing(tmp_path, whole):
    path, last = tmp_path / "damaged.ckpt", whole / "checkpoints" / "last.ckpt"
    content, expected, dice, noticed = last.read_bytes(), load(last), random.Random(0), 0
    as_a_folder = 8 * (content.index(b"PK\1\2") + 38) + 4  # an attribute of the first part
    for bit in [as_a_folder, *(dice.randrange(8 * len(content)) for _ in range(400))]:
        path.write_bytes(content)
        flip(path, bit)
        try:
            assert differences(expected, read_checkpoint(path)) == []
        except UserError:
            noticed += 1
    assert noticed > 150
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"damaged\.ckpt' is damaged"):
            read_checkpoint(path)


def flip_a_weight(path: Path) -> None:
    """Changes one bit of a weight, which ``torch.load`` does not notice."""
    weight = load(path)["state_dict"]["network.fc.weight"]
    flip(path, 8 * path.read_bytes().index(weight.numpy().tobytes()) + 20)
    assert not torch.equal(load(path)["state_dict"]["network.fc.weight"], weight)


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one_and_keeps_it_until_it_is_finished(
    workplace, whole, capsys, monkeypatch
):
    stop_at(6, EVERY_STEP)
    flip_a_weight(LAST)
    before = PREVIOUS.read_bytes()
    with monkeypatch.context() as patch:
        # the first one after the run resumes
        patch.setattr(AtomicCheckpointIO, "save_checkpoint", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(SystemExit):
            fit(EVERY_STEP)
    assert PREVIOUS.read_bytes() == before
    capsys.readouterr()
    fit(EVERY_STEP)
    said = capsys.readouterr().err
    assert re.search(rf"'{LAST}' is damaged.*in epoch 2 after step 5", said, re.S)
    assert sorted(os.listdir(LAST.parent)) == ["best.ckpt", "last.ckpt"]
    require_same_end(RUN, outcome(whole))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
@pytest.mark.parametrize("name", ["last", "best"])
def test_a_run_resumes_after_the_disk_was_full(workplace, whole, monkeypatch, capsys, name):
    stop_at(3, "--callbacks.last_checkpoint.every_n_steps=2")

    def full_for_this(path, mode):
        # unbuffered, so that torch meets the error, as with weights larger than a buffer
        return open("/dev/full" if path.name.startswith(f".{name}.") else path, mode, buffering=0)

    with monkeypatch.context() as patch:
        patch.setattr("lightkeeper.exact._checkpoint_io.open", full_for_this, raising=False)
        said = one_line(lambda: fit(EVERY_STEP), capsys)
    hint = "to resume, run python -m tests.fit with the same options and --name run"
    assert re.search(rf"No space left on device: '\S*{LAST.with_stem(name)}'; make room,", said)
    assert f"'; make room, or write elsewhere; {hint}" in said
    assert {path.name for path in LAST.parent.iterdir()} <= {"last.ckpt", "previous.ckpt"}
    assert load(PREVIOUS)["global_step"] >= 3
    fit()
    require_same_end(RUN, outcome(whole))


class Deep(nn.Module):
    """A network of the user's."""


shallow = partial(Deep, depth=1)


def test_a_network_is_found_in_a_module_that_the_user_has_named_and_where_it_has_moved(monkeypatch):
    monkeypatch.setattr("lightkeeper.images._settings._allowed", set())
    here = f"{__name__}.Deep"
    for path in (here, "of_an_earlier_name.Deep"):
        with pytest.raises(UserError, match=f"give --import {__name__} if that is yours"):
            network_of_file(path, None)
    allow_module(__name__.rpartition(".")[0])  # the package
    for path in (here, f"{__name__}.shallow", "resnet18"):
        assert network_of_file(path, {"depth": 3}) == path
    assert network_of_file("of_an_earlier_name.Deep", {"depth": 3}) == here


class Base:
    def __init__(
        self, size: int = 1, names: list[str] | None = None, mode: Literal["a", "b"] = "a"
    ) -> None: ...


class Derived(Base):
    def __init__(
        self, transform: Callable[..., Any] | None = None, model: Base | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)


first, newest = (type("Twice", (Derived,), {}) for _ in range(2))  # as a notebook's cell run again
twins = [type("Twin", (Derived,), {"__module__": name}) for name in ("one_a", "one_b")]
heir = type("Heir", (type("Heir", (Derived,), {"__module__": "one_a"}),), {"__module__": "one_b"})


@cases(
    "name expected",
    ("Derived", Derived),
    ("no_such_module.Derived", Derived),
    ("Twice", newest),
    ("one_a.Twin", twins[0]),
    ("one_b.Twin", twins[1]),
    ("Heir", heir),
    *dict.fromkeys(["Base", "collections.OrderedDict", "antigravity.Derive", "", "."]).items(),
)
def test_a_class_is_found_by_its_name_whatever_module_is_named_in_front_and_nothing_is_imported(
    name, expected
):
    assert imported_class(name, Base) is expected
    assert "antigravity" not in sys.modules


@cases("name", "Twin", "where_it_was.Twin")
def test_a_class_of_two_modules_is_none_of_them_by_its_name_alone(name, monkeypatch):
    with pytest.raises(UserError, match="Twin is in one_a and one_b; import one of these alone"):
        imported_class(name, Base)
    monkeypatch.setattr("lightkeeper.images._settings._allowed", {"one_a"})  # as by --import
    assert imported_class(name, Base) is twins[0]


@cases(
    "options kept",
    ({"size": 3, "names": ["x"], "mode": "b"}, {"size": 3, "names": ["x"], "mode": "b"}),
    ({"_instantiator": "os.system", "_class_path": "os.system", "other": 1}, {}),
    ({"transform": "os.system", "model": {"class_path": "os.system"}, "size": 2}, {"size": 2}),
    ({"transform": ["os.system"], "model": None}, {"model": None}),
)
def test_what_is_no_plain_setting_is_left_out(options, kept):
    assert plain_options(options, newest) == kept


def test_a_number_that_stands_for_many_does_not_fill_the_memory(whole, tmp_path):
    checkpoint = load(whole / "checkpoints" / "last.ckpt")
    checkpoint["state_dict"]["x"] = torch.zeros(1).expand(10**12)
    torch.save(checkpoint, tmp_path / "small.ckpt")
    with pytest.raises(UserError, match=r"damaged: state_dict\.x is no tensor of finite numbers"):
        read_checkpoint(tmp_path / "small.ckpt")


def test_a_users_best_elsewhere_is_not_taken_for_the_runs(workplace):
    fit(callbacks=[ModelCheckpoint("mine", "best-{step}", monitor="step", mode="max")])
    assert read_json(RUN / "metrics.json")["selection"]["monitor"] == "val/accuracy"
    assert os.listdir("mine") == ["best-step=8.ckpt"]  # the earlier one was removed


def test_a_file_of_weights_alone_opens_by_its_hyperparameters(workplace):
    kept = ModelCheckpoint("mine", "w", save_weights_only=True, every_n_train_steps=4)
    fit(callbacks=[kept])
    about = read_checkpoint("mine/w.ckpt")[ABOUT]
    assert about["class_names"] == ["dark", "grey", "light"]
    assert about["preprocessing"] == PREPROCESSING
    assert (about["data"], about["metrics"]) == (None, {})
    model = ToyClassifier.load_from_checkpoint("mine/w.ckpt")
    weights = load(Path("mine/w.ckpt"))["state_dict"]
    assert torch.equal(model.network.fc.weight, weights["network.fc.weight"])
    assert read_weights("mine/w.ckpt").class_names == about["class_names"]
    content = load(Path("mine/w.ckpt"))
    del content["hyper_parameters"]["class_names"]  # as of a module that has none
    torch.save(content, "mine/w.ckpt")
    assert read_weights("mine/w.ckpt").class_names == []
