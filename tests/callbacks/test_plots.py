"""A finished run has its plots as files, and on request its test images in TensorBoard's projector."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from project.explore.data import open_data
from project.model import ImageClassifier
from project.run.checkpoint import ABOUT
from tests.conftest import SLIM, TINY, fit
from tests.small import load

OPTIONS = [*TINY, *SLIM, "--name=run"]
RUN = Path("runs/run")


@pytest.mark.parametrize("name", ["curves", "confusion_matrix", "classes"])
def test_a_run_ends_with_plots(tiny_run, name):
    with Image.open(tiny_run / "plots" / f"{name}.png") as image:
        assert image.format == "PNG"
        assert min(image.size) > 100
        assert np.asarray(image.convert("RGB")).std() > 5


def features(model: ImageClassifier, images: torch.Tensor) -> torch.Tensor:
    """What goes into the last layer."""
    kept: list[torch.Tensor] = []
    last = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)][-1]
    last.register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.no_grad():
        model.eval()(images)
    return kept[0]


def test_the_projector_has_features_labels_and_thumbnails(workplace):
    fit(*OPTIONS, "--callbacks.projector.count=13", "--callbacks.plots=false")
    assert not (RUN / "plots").exists()
    (table,) = RUN.rglob("tensors.tsv")
    with open(table, newline="") as file:
        found = torch.tensor([[float(value) for value in row] for row in csv.reader(file, delimiter="\t")])
    best = RUN / "checkpoints" / "best.ckpt"
    model, data = ImageClassifier.load_from_checkpoint(best), open_data(load(best)[ABOUT])
    data.setup("test")
    test, chosen = data.splits["test"], list(range(0, 26, 2))
    torch.testing.assert_close(
        found, features(model, torch.stack([test.image(i) for i in chosen])), rtol=1e-4, atol=1e-5
    )
    labels = table.with_name("metadata.tsv").read_text().splitlines()
    assert labels == [model.class_names[int(test.labels[i])] for i in chosen]
    with Image.open(table.with_name("sprite.png")) as sprite:  # four in a row, as 13 need
        first = np.asarray(sprite.convert("RGB"))[:32, 32:64]
    assert np.abs(first.astype(int) - test.image(2).permute(1, 2, 0).numpy()).max() <= 1
    assert "metadata.tsv" in (RUN / "projector_config.pbtxt").read_text()
