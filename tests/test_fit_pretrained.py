"""Runs that start from pretrained weights: images are prepared as these ask for, in every command."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torchvision.models import get_model  # type: ignore[attr-defined]  # not in its __all__

from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.fit import FitCLI
from project.model.pretrained import find_weights
from tests.conftest import QUIET, SLIM, TINY, evaluate, fit, make_folder
from tests.small import load, one_line

ARCH = ["--model.arch=mobilenet_v3_small", "--model.weights=IMAGENET1K_V1"]
DATA = ["--data=FolderDataModule", "--data.root=images", "--data.batch_size=4", "--data.num_workers=0"]
SHORT = ["--trainer.accelerator=cpu", "--trainer.max_epochs=1", *QUIET]


@pytest.fixture
def place(workplace, monkeypatch) -> Path:
    """A folder of images, and torchvision's weights in torch's cache, though others than torchvision's."""
    make_folder(workplace / "images", dict.fromkeys("abc", 6))
    cache = workplace / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(get_model("mobilenet_v3_small").state_dict(), cache / "mobilenet_v3_small-047dcff4.pth")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(workplace / "hub"))
    monkeypatch.setattr("project.model.pretrained.fetch_file", lambda url, path, sha256: path.stat())
    return workplace


def parsed(*args: str) -> Any:
    """A command's data options and preprocessing, and nothing trained."""
    cli = FitCLI([*DATA, *ARCH, *SHORT, *args])
    return cli.config.data.init_args, cli.model.preprocessing


def test_preprocessing_follows_the_weights_unless_it_is_given(place):
    options, found = parsed()
    assert found == find_weights("mobilenet_v3_small", "IMAGENET1K_V1").preprocessing()
    assert (options.image_size, options.resize, options.interpolation) == (224, 256, "bilinear")
    _, found = parsed("--data.image_size=64", "--data.mean=[0.1,0.2,0.3]", "--data.interpolation=bicubic")
    assert (found["crop"], found["resize"], found["interpolation"]) == (64, 73, "bicubic")
    assert found["mean"] == [0.1, 0.2, 0.3]
    assert found["std"] == [0.229, 0.224, 0.225]


def test_data_whose_size_is_its_own_takes_the_statistics_alone(place):
    cli = FitCLI(["--data=CIFAR10DataModule", *ARCH, *SHORT])
    assert cli.model.preprocessing["crop"] == 32
    assert cli.model.preprocessing["mean"] == [0.485, 0.456, 0.406]


def test_a_frozen_backbone_needs_weights(workplace):
    with pytest.raises(UserError, match=r"--model\.freeze_backbone needs --model\.weights"):
        FitCLI([*TINY, "--model.freeze_backbone=true"])


def test_a_run_keeps_what_the_weights_asked_for_and_needs_them_no_more(place, capsys):
    flags = [*ARCH, "--model.freeze_backbone=true", *SHORT, "--data.image_size=64", "--name=run"]
    fit(*DATA, *flags, "--data.interpolation=bicubic")
    assert "starting from 'IMAGENET1K_V1 of mobilenet_v3_small', but with a new head for 3 classes (classifier.3" in (
        capsys.readouterr().err
    )
    run = place / "runs" / "run"
    best = run / "checkpoints" / "best.ckpt"
    prepared = read_checkpoint(best)[ABOUT]["preprocessing"]
    assert (prepared["crop"], prepared["resize"], prepared["interpolation"]) == (64, 73, "bicubic")
    written = yaml.safe_load((run / "config.yaml").read_text())
    assert written["data"]["init_args"]["resize"] == 73
    assert written["model"]["init_args"]["weights"] == "IMAGENET1K_V1"

    (place / "hub" / "checkpoints" / "mobilenet_v3_small-047dcff4.pth").unlink()
    evaluate(f"--ckpt_path={best}", "--output=all.json")
    assert (
        json.loads(Path("all.json").read_text())["accuracy"]
        == json.loads((run / "metrics.json").read_text())["test"]["accuracy"]
    )
    (run / "metrics.json").unlink()
    fit(*DATA, *flags, "--data.interpolation=bicubic", "--trainer.max_epochs=2")
    assert read_checkpoint(best)[ABOUT]["preprocessing"] == prepared


def test_a_run_whose_last_checkpoint_is_damaged_is_prepared_as_the_one_before_it(tiny_run, workplace):
    content = load(tiny_run / "checkpoints" / "best.ckpt")
    content[ABOUT]["preprocessing"]["mean"] = [0.1, 0.2, 0.3]
    torch.save(content, "weights.ckpt")
    flags = [*TINY, *SLIM, "--model.weights=weights.ckpt", "--name=run"]
    checkpoints = fit(*flags).run.path / "checkpoints"
    (checkpoints.parent / "metrics.json").unlink()
    Path("weights.ckpt").unlink()
    (checkpoints / "last.ckpt").rename(checkpoints / "previous.ckpt")
    (checkpoints / "last.ckpt").write_bytes((checkpoints / "previous.ckpt").read_bytes()[:-1000])
    resumed = FitCLI([*flags, "--trainer.max_epochs=2"])
    assert resumed.model.preprocessing["mean"] == [0.1, 0.2, 0.3]


def test_weights_of_a_checkpoint_of_ours_bring_their_preprocessing(tiny_run, workplace):
    cli = FitCLI(["--data.train_size=16", *SLIM, *SHORT, f"--model.weights={tiny_run / 'checkpoints' / 'best.ckpt'}"])
    assert cli.config.data.init_args.image_size == 32
    assert cli.model.preprocessing["mean"] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--data.mean=[0.5,0.5,2]", r"--data\.mean must be three numbers from 0 to 1"),
        ("--data.std=[0.5,0,0.5]", r"--data\.std must be three numbers above 0"),
        ("--data.resize=100", r"--data\.resize must be at least 224, the image size, got 100"),
    ],
)
def test_numbers_that_cannot_be_are_refused(place, flag, complaint, capsys):
    assert re.search(complaint, one_line(lambda: parsed(flag), capsys))
