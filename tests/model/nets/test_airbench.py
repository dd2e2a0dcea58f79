"""The network, optimizer and views that reach 94% on CIFAR-10: what the paper says of them, and our promises."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from project.export import export, parse
from project.model import ImageClassifier
from project.model.nets.airbench import Airbench
from project.model.test_time import evaluation_logits
from tests.conftest import evaluate, make_folder
from tests.small import small

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


def test_it_is_the_papers_network_whose_convolutions_begin_by_copying_their_input():
    network, x = Airbench(10), torch.randn(2, 24, 9, 9)
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(1.97e6, rel=0.005)
    torch.testing.assert_close(network.layer1[0](x)[:, :24], x)


def expected_logits(model: Any, images: Any, views: bool) -> torch.Tensor:
    """Means of logits in float64, one crop of the reflected image at a time; or those of images as they are."""
    mean, std = (
        torch.tensor(model.preprocessing[name], dtype=torch.float64)[:, None, None] for name in ("mean", "std")
    )
    network = model.double().network
    if not views:
        return network((images / 255 - mean) / std)
    total = torch.zeros(len(images), len(model.class_names), dtype=torch.float64)
    padded, side = F.pad(images.double(), (1,) * 4, mode="reflect").to(torch.uint8), images.shape[2]
    for place, weight in ((1, 1 / 4), (0, 1 / 8), (2, 1 / 8)):
        view = padded[:, :, place : place + side, place : place + side]
        for mirrored in (view, view.flip(3)):
            total += weight * network((mirrored / 255 - mean) / std)
    return total


@torch.inference_mode()
def test_every_use_but_validation_takes_means_over_views(workplace, capsys):
    network = [f"--model.arch={__name__}.narrow", "--trainer.max_epochs=1"]
    fewer = ["--data.train_size=32", "--data.val_size=10", "--data.test_size=12"]
    with torch.inference_mode(False):
        small(*OPTIONS, *network, *fewer, network=narrow)
    checkpoint = Path("runs/run/checkpoints/best.ckpt")
    for split, views in (("test", True), ("val", False)):
        cli = evaluate(str(checkpoint), f"--import={__name__}", f"--split={split}", "--output=found.json")
        assert ("flip_and_shift" in capsys.readouterr().err) == views
        data = cli.datamodule.splits[split]
        every = data.__getitems__(list(range(len(data))))
        logits = expected_logits(ImageClassifier.load_from_checkpoint(checkpoint).eval(), every.images, views)
        for file, metrics in (("found.json", None), ("runs/run/metrics.json", split)):
            found = json.loads(Path(file).read_text())
            found = found if metrics is None else found[metrics]
            assert found["correct"] == int((logits.argmax(1) == every.labels).sum())
            assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, every.labels)), rel=1e-5)
        if split == "test":
            model = ImageClassifier.load_from_checkpoint(checkpoint).eval()
            torch.testing.assert_close(evaluation_logits(model, every.images).double(), logits, rtol=1e-4, atol=1e-4)
            images = make_folder(Path("images"), {"b": 3})
            export(parse([str(checkpoint), "--output=views.pt2", f"--images={images}"]))
            program = torch.export.load("views.pt2").module()
            torch.testing.assert_close(program(every.images).double(), logits.softmax(1), rtol=1e-4, atol=1e-4)
