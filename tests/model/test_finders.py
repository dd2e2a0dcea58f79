"""Lightning's finders decide as if the command had: the run that follows is the one that is given what they found."""

import re
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.tuner.tuning import Tuner

from project.data import SyntheticFlowersDataModule
from project.engine.errors import UserError
from project.model import ImageClassifier
from tests.small import load, require_same_end, small, stop_at
from tests.stress import outcome

RUN = Path("runs/run")
RATE = [
    "--trainer.callbacks+=LearningRateFinder",
    "--trainer.callbacks.num_training_steps=30",
    "--trainer.max_epochs=5",
]
SIZE = ["--trainer.callbacks+=BatchSizeFinder", "--trainer.callbacks.max_val=8", "--trainer.callbacks.init_val=4"]
SHORTER = ["--model.base_batch_size=32", "--trainer.callbacks.max_lr=10"]


def found(text: str) -> list[str]:
    """The options that a run has printed."""
    return [f"{name}={value}" for name, value in re.findall(r"found: (--[\w.]+) ([\w.-]+)", text)]


@pytest.mark.parametrize("finders", [pytest.param([*RATE, *SHORTER], marks=pytest.mark.slow), [*SIZE, *RATE]])
def test_the_run_is_the_one_that_is_given_what_was_found(workplace, monkeypatch, capsys, finders):
    (workplace / "given").mkdir()
    small(*finders)
    options = found(capsys.readouterr().err)
    assert len(options) == sum("+=" in flag for flag in finders)
    assert (RUN / "lr_find.png").exists() == (RATE[0] in finders)
    assert not [path for path in RUN.iterdir() if path.suffix == ".ckpt"]
    expected = outcome(RUN)
    monkeypatch.chdir(workplace / "given")
    small(*options, *(flag for flag in finders if "callbacks" not in flag))
    require_same_end(RUN, expected)


def test_a_resumed_run_keeps_what_was_found_and_does_not_search(workplace, monkeypatch, capsys):
    finders = [*SIZE, *RATE]
    (workplace / "whole").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(workplace / "whole")
        small(*finders)
        expected = outcome(RUN)
    stop_at(3, *finders)
    assert capsys.readouterr().err.count("learning rate found") == 2  # in the whole run and the first part of the other
    small(*finders)
    said = capsys.readouterr().err
    assert "found: --" not in said
    assert "from here on" not in said  # the batch size is the one that was found, whatever the command says
    require_same_end(RUN, expected)
    assert load(RUN / "checkpoints" / "last.ckpt")["found"]["batch_size"] == 8


def test_a_resumed_run_takes_the_rate_of_a_command_that_does_not_ask_for_a_search(workplace):
    stop_at(3, *RATE)
    cli = small("--model.optimizer.lr=0.5")
    assert cli.model.optimization.summary(cli.trainer)["optimizer"]["lr"] == 0.5


@pytest.mark.filterwarnings("ignore")  # Lightning's, of small data
def test_from_python(workplace):
    data = SyntheticFlowersDataModule(train_size=64, val_size=16, test_size=16, image_size=16, batch_size=4)
    model = ImageClassifier(data.class_names, data.preprocessing, arch="tests.stress.SmallNetwork")
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
    }
    trainer = Trainer(max_epochs=6, **quiet)
    assert Tuner(trainer).scale_batch_size(model, datamodule=data, max_val=16) == data.batch_size == 16
    finder = Tuner(trainer).lr_find(model, datamodule=data, num_training=20)
    assert finder is not None
    trainer.fit(model, datamodule=data)
    assert model.lr == finder.suggestion() == trainer.optimizers[0].param_groups[0]["initial_lr"]
    assert trainer.global_step == 24


def test_an_optimizer_with_several_rates_is_not_searched(workplace):
    with pytest.raises(UserError, match=r"one learning rate, but Muon has several \(0\.01, 0\.1\); leave it out"):
        small(*RATE, "--model.optimizer=project.model.Muon")
    assert not Path("runs").exists()


def test_layers_with_rates_of_their_own_are_not_searched(workplace):
    with pytest.raises(UserError, match=r"the same learning rate for all layers, but --model\.layer_decay gives each"):
        small(*RATE, "--model.layer_decay=0.5")
    assert not Path("runs").exists()
