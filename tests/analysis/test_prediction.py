"""Image files are labelled as torchvision's transforms and the network would."""

from collections.abc import Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from project.analysis.prediction import predict
from project.engine.errors import UserError
from project.engine.preprocessing import Fit, Preprocessing
from project.model import ImageClassifier
from tests.conftest import draw_image

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types


def by_torchvision(model: ImageClassifier, paths: Sequence[str | Path], flips: bool = False) -> tuple[Tensor, Tensor]:
    """Files as input, by torchvision's transforms, and the logits that the network makes of them in float64."""
    about: Preprocessing = model.preprocessing
    crop, colour = about["crop"], [round(255 * mean) for mean in about["mean"]]

    def pad(image: Tensor) -> Tensor:
        left, upper = ((crop - size) // 2 for size in (image.shape[2], image.shape[1]))
        right, lower = crop - image.shape[2] - left, crop - image.shape[1] - upper
        padded: Tensor = v2.functional.pad(image, [left, upper, right, lower], fill=colour)
        return padded

    fits = {
        "crop": [v2.Resize(about["resize"], antialias=True), v2.CenterCrop(crop)],
        "pad": [v2.Resize(None, max_size=crop, antialias=True), pad],
        "squash": [v2.Resize((crop, crop), antialias=True)],
    }
    prepare = v2.Compose([v2.PILToTensor(), *fits[about.get("fit", "crop")]])
    images = torch.stack([prepare(Image.open(path)) for path in paths])
    normalize = v2.Compose([v2.ToDtype(torch.float64, scale=True), v2.Normalize(about["mean"], about["std"])])
    network = deepcopy(model.network).double().eval()
    with torch.inference_mode():
        logits = [network(normalize(view)) for view in ([images, images.flip(3)] if flips else [images])]
    return images, torch.stack(logits).mean(0)


def untrained(fit: Fit = "crop") -> ImageClassifier:
    torch.manual_seed(0)
    preprocessing: Preprocessing = {
        "resize": 36, "crop": 32, "fit": fit, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]
    }  # fmt: skip
    return ImageClassifier(["a", "b", "c"], preprocessing, arch="resnet9_slim")


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_predictions_are_those_of_torchvisions_transforms(fit: Fit, tmp_path):
    model, paths = untrained(fit), [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        draw_image(number / 5, seed=number, size=(50 + 9 * number, 61)).save(path)
    expected = by_torchvision(model, paths)[1].softmax(1)
    found = predict(model, paths, batch_size=2)
    for prediction, row in zip(found, expected, strict=True):
        assert list(prediction.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-4)
        assert prediction.label == "abc"[int(row.argmax())]
        assert prediction.probability == max(prediction.probabilities.values())


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"notes\.jpg"):
        predict(untrained(), [tmp_path / "notes.jpg"])
    assert predict(untrained(), []) == []
