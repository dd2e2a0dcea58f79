"""The network, optimizer and views that reach 94% on CIFAR-10: what the paper says of them, and our promises."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from project.analysis.evaluation import evaluate_split
from project.export import export, parse
from project.model import ImageClassifier
from project.model.nets.airbench import Airbench
from project.model.test_time import evaluation_logits
from tests.conftest import evaluate, make_folder
from tests.engine.training.test_last_checkpoint import STEPS
from tests.small import require_same_end, small, stop_at
from tests.stress import outcome

OPTIONS = [
    "--model.optimizer=project.model.Muon",
    "--model.test_time_augmentation=flip_and_shift",
    "--data.flip=alternating",
    "--data.crop_padding=2",
    "--trainer.log_every_n_steps=3",
]


def narrow(num_classes):
    """Of the same parts, and written to the disk in no time."""
    return Airbench(num_classes, (8, 16, 16))


def test_it_has_the_parameters_of_the_paper():
    assert sum(parameter.numel() for parameter in Airbench(10).parameters()) == pytest.approx(1.97e6, rel=0.005)


def test_convolutions_begin_by_copying_their_input():
    torch.manual_seed(0)
    x = torch.randn(2, 24, 9, 9)
    first = Airbench(10).layer1[0]
    torch.testing.assert_close(first(x)[:, :24], x)


@pytest.mark.parametrize("steps", [(1, 6), pytest.param(range(STEPS + 1), marks=pytest.mark.slow)], ids=["two", "all"])
def test_a_run_that_is_stopped_in_some_steps_ends_as_if_undisturbed(workplace, tmp_path_factory, steps):
    place: Path = tmp_path_factory.mktemp("undisturbed")
    small(*OPTIONS, f"--trainer.default_root_dir={place}", network=narrow)
    for step in steps:
        stop_at(step, *OPTIONS, network=narrow)
    small(*OPTIONS, network=narrow)
    require_same_end(Path("runs/run"), outcome(place / "run"))


def mean_over_views(model, images):
    """Means of single images' logits in float64, one crop of the reflected image at a time."""
    model = model.double()
    total = torch.zeros(len(images), len(model.class_names), dtype=torch.float64)
    padded = F.pad(images.double(), (1,) * 4, mode="reflect").to(torch.uint8)
    side = images.shape[2]
    for place, weight in ((1, 1 / 4), (0, 1 / 8), (2, 1 / 8)):
        view = padded[:, :, place : place + side, place : place + side]
        for mirrored in (view, view.flip(3)):
            total += weight * model.network((mirrored / 255 - mean_of(model)) / std_of(model))
    return total


def mean_of(model):
    return torch.tensor(model.preprocessing["mean"], dtype=torch.float64)[:, None, None]


def std_of(model):
    return torch.tensor(model.preprocessing["std"], dtype=torch.float64)[:, None, None]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    place: Path = tmp_path_factory.mktemp("trained")
    network = [f"--model.arch={__name__}.narrow", f"--trainer.default_root_dir={place}"]
    fewer = ["--trainer.max_epochs=1", "--data.train_size=32", "--data.val_size=10", "--data.test_size=12"]
    small(*OPTIONS, *network, *fewer, network=narrow)
    return place / "run"


@torch.inference_mode()
def test_the_test_is_of_means_over_views_and_so_is_every_use_of_the_checkpoint(trained, tmp_path, capsys):
    checkpoint = trained / "checkpoints" / "best.ckpt"
    cli = evaluate(str(checkpoint), f"--import={__name__}", f"--output={tmp_path / 'found.json'}")
    assert "flip_and_shift" in capsys.readouterr().err
    found = json.loads((tmp_path / "found.json").read_text())
    reported = json.loads((trained / "metrics.json").read_text())["test"]
    data = cli.datamodule.splits["test"]
    every = data.__getitems__(list(range(len(data))))
    logits = mean_over_views(ImageClassifier.load_from_checkpoint(checkpoint).eval(), every.images)
    assert found["correct"] == reported["correct"] == int((logits.argmax(1) == every.labels).sum())
    assert reported["loss"] == pytest.approx(float(F.cross_entropy(logits, every.labels)), rel=1e-5)

    model = ImageClassifier.load_from_checkpoint(checkpoint).eval()
    torch.testing.assert_close(evaluation_logits(model, every.images).double(), logits, rtol=1e-4, atol=1e-4)

    file = tmp_path / "views.pt2"
    export(
        parse([f"--ckpt_path={checkpoint}", f"--output={file}", f"--images={make_folder(tmp_path / 'a', {'b': 3})}"])
    )
    program = torch.export.load(file).module()
    torch.testing.assert_close(program(every.images).double(), logits.softmax(1), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_validation_is_of_images_as_they_are(trained, tmp_path):
    checkpoint = trained / "checkpoints" / "best.ckpt"
    cli = evaluate(str(checkpoint), f"--import={__name__}", "--split=val", f"--output={tmp_path / 'found.json'}")
    data = cli.datamodule.splits["val"]
    every = data.__getitems__(list(range(len(data))))
    model = ImageClassifier.load_from_checkpoint(checkpoint).eval().double()
    logits = model.network((every.images / 255 - mean_of(model)) / std_of(model))
    expected = float(F.cross_entropy(logits, every.labels))
    assert json.loads((tmp_path / "found.json").read_text())["loss"] == pytest.approx(expected, rel=1e-5)
    assert evaluate_split(model.float(), cli.datamodule, "val").metrics.loss == pytest.approx(expected, rel=1e-5)
    assert json.loads((trained / "metrics.json").read_text())["val"]["loss"] == pytest.approx(expected, rel=1e-5)
