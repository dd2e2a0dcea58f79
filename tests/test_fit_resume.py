"""A run of ``python -m project.fit`` that was stopped continues to the same end, and a finished one stays as it is."""

import shlex
import shutil

import pytest
import torch

from project.engine.errors import UserError
from project.engine.training.bookkeeping import Bookkeeping
from project.fit import FitCLI
from tests.conftest import SLIM, TINY, fit, make_folder
from tests.small import load, small, stop_at


def test_a_finished_run_is_not_overwritten_and_names_the_way_to_train_longer_which_works(tiny_run, workplace):
    longer = [*TINY, *SLIM, f"--trainer.default_root_dir={tiny_run.parent}", "--trainer.max_epochs=2"]
    finished = (tiny_run / "metrics.json").read_bytes()
    with pytest.raises(UserError, match="to train longer, start another from its weights: ") as refused:
        fit(*longer, "--name=tiny")
    assert (tiny_run / "metrics.json").read_bytes() == finished
    way = shlex.split(str(refused.value).split("weights: ")[1].split(";")[0])
    assert way == ["--name", "tiny_longer", "--model.weights", str(tiny_run / "checkpoints" / "best.ckpt")]
    started = FitCLI([*longer, *way])
    before = load(tiny_run / "checkpoints" / "best.ckpt")["state_dict"]
    for name, value in started.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_run_resumed_after_its_last_validation_still_says_what_that_measured(workplace):
    seldom = ["--trainer.check_val_every_n_epoch=2", "--trainer.max_epochs=3"]
    small(*seldom, "--name=whole")
    stop_at(10, *seldom)
    small(*seldom)
    whole, resumed = (load(workplace / "runs" / name / "checkpoints" / "last.ckpt") for name in ("whole", "run"))
    assert "val" in whole["about"]["metrics"]
    assert resumed["about"]["metrics"]["val"] == whole["about"]["metrics"]["val"]


def test_a_moved_run_still_knows_its_best_metric(tiny_run, workplace, monkeypatch):
    shutil.copytree(tiny_run, workplace / "elsewhere" / "tiny")
    (workplace / "elsewhere" / "tiny" / "metrics.json").unlink()
    best = workplace / "elsewhere" / "tiny" / "checkpoints" / "best.ckpt"
    before = best.read_bytes()
    hook = "on_validation_epoch_end"
    monkeypatch.setattr(Bookkeeping, hook, lambda _, trainer, model: model.log("val/accuracy", 0.0))  # worse
    monkeypatch.setattr("project.callbacks.ConfusionMatrixPlot.on_validation_end", lambda *_: None)
    fit(*TINY, *SLIM, "--trainer.max_epochs=2", "--trainer.default_root_dir=elsewhere", "--name=tiny")
    assert best.read_bytes() == before


def test_a_resumed_run_says_which_images_and_options_of_its_data_are_others(workplace, capsys):
    for split in ("train", "val", "test"):
        make_folder(workplace / "images" / split, {"red": 8, "blue": 8})
    data = ["--data=FolderDataModule", "--data.root=images", "--data.image_size=32", "--data.batch_size=4"]
    stop_at(1, data=data)
    stop_at(2, data=data)
    said = capsys.readouterr().err
    assert "the data has changed" not in said
    assert "from here on" not in said
    (workplace / "images" / "train" / "red" / "3.jpg").unlink()
    erasing = "--data.train_transforms=[torchvision.transforms.v2.RandomErasing]"
    small("--data.cutout=4", "--data.class_balance=1", erasing, data=data)
    said = capsys.readouterr().err
    assert "the data has changed since this run was stopped: 15 train images, not 16;" in said
    (line,) = (line for line in said.splitlines() if line.startswith("continuing runs/run in epoch"))
    changes = (
        "--data.cutout is 4, not 0",
        "class_balance is 1.0, not 0.0",
        "train_transforms is ['RandomErasing(p=0.5",
    )
    for change in ("; from here on ", *changes):
        assert change in line
