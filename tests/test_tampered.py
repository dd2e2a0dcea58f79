"""Nothing that a tampered checkpoint says chooses what is imported, run, written or deleted."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from project.data import SyntheticFlowersDataModule
from project.errors import UserError
from project.explore.data import open_data
from project.model import ImageClassifier
from project.run.checkpoint import read_checkpoint
from tests.conftest import evaluate
from tests.small import load

MODULE = "imported_by_a_checkpoint"


@pytest.fixture
def mark(tmp_path, monkeypatch) -> Path:
    """What a module that can be imported leaves behind when it is."""
    (tmp_path / f"{MODULE}.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'mark')!r})\nclass Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "mark"


@pytest.fixture
def checkpoint(tiny_run, tmp_path) -> Any:
    """Writes a checkpoint of a real run with changes, and gives its path."""

    def write(change: Any) -> Path:
        content = load(tiny_run / "checkpoints" / "best.ckpt")
        change(content)
        torch.save(content, tmp_path / "tampered.ckpt")
        return tmp_path / "tampered.ckpt"

    return write


def instantiator(content: Any) -> None:
    thing = {"class_path": f"{MODULE}.Thing"}
    content["hyper_parameters"] |= {
        "_instantiator": "lightning.pytorch.cli.instantiate_module",
        "_class_path": "project.model.classifier.ImageClassifier",
        "optimizer": thing,
        "lr_scheduler": thing,
    }


def own_instantiator(content: Any) -> None:
    content["hyper_parameters"] |= {"_instantiator": f"{MODULE}.Thing"}


def data(content: Any) -> None:
    content["about"]["data"]["class_path"] = f"{MODULE}.Thing"


def options_of_data(content: Any) -> None:
    content["about"]["data"]["init_args"] |= {
        "image_size": {"class_path": f"{MODULE}.Thing"},
        "load": f"{MODULE}.Thing",
    }


TAMPERINGS = [instantiator, own_instantiator, data, options_of_data]


@pytest.mark.parametrize("change", TAMPERINGS)
def test_a_checkpoint_imports_nothing(checkpoint, change, mark):
    path = checkpoint(change)
    for use in (
        lambda: evaluate(f"--ckpt_path={path}", "--data.image_size=32"),
        lambda: ImageClassifier.load_from_checkpoint(path),
        lambda: open_data(read_checkpoint(path)["about"]),
    ):
        with suppress(UserError, SystemExit):
            use()
    assert not mark.exists()
    assert MODULE not in sys.modules


def test_the_module_would_leave_a_mark(mark):
    __import__(MODULE)
    del sys.modules[MODULE]
    assert mark.exists()


def test_a_data_module_of_the_users_own_is_found_where_the_command_line_names_it(checkpoint, tmp_path, monkeypatch):
    own = "from project.data import SyntheticFlowersDataModule\nclass Own(SyntheticFlowersDataModule): pass\n"
    (tmp_path / "users_module.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    path = checkpoint(lambda content: content["about"]["data"].update(class_path="Own"))
    with pytest.raises(UserError, match="trained on Own, which is no data module that is imported here"):
        evaluate(f"--ckpt_path={path}")
    evaluate(f"--ckpt_path={path}", "--data=users_module.Own")  # with the sizes that the checkpoint remembers
    assert '"total": 26' in (tmp_path / "tampered.test.metrics.json").read_text()


def test_a_checkpoint_chooses_no_place_to_write_to(checkpoint, tmp_path):
    victim = tmp_path / "victim"

    def change(content: Any) -> None:
        init_args = {"root": str(victim), "cache": str(victim), "image_size": 32}
        content["about"]["data"] = {"class_path": "FlowersDataModule", "init_args": init_args}
        content["about"]["class_names"] = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
        content["hyper_parameters"]["class_names"] = content["about"]["class_names"]
        for name in ("weight", "bias"):
            content["state_dict"][f"network.fc.{name}"] = content["state_dict"][f"network.fc.{name}"][:5].clone()

    path = checkpoint(change)
    for use in (lambda: evaluate(f"--ckpt_path={path}"), lambda: open_data(read_checkpoint(path)["about"])):
        with pytest.raises(UserError, match=r"images in '.*victim/flower_photos', which are not there; .* --data.root"):
            use()
    assert not victim.exists()
    assert open_data(read_checkpoint(path)["about"], root="data").cache is None  # type: ignore[attr-defined]


def test_the_data_of_a_checkpoint_is_opened_with_its_options(tiny_run):
    found = open_data(read_checkpoint(tiny_run / "checkpoints" / "best.ckpt")["about"], test_size=5)
    assert isinstance(found, SyntheticFlowersDataModule)
    assert found.sizes == {"train": 64, "val": 24, "test": 5}
