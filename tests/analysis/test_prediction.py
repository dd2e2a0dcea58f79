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
from tests.distributed.job import classifier

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types


def prepared(image: Image.Image, about: Preprocessing) -> Tensor:
    """What torchvision's transforms make of the pixels, uint8 (3, crop, crop)."""
    crop, fit = about["crop"], about.get("fit", "crop")
    sizes = {"crop": (about["resize"],), "pad": (None,), "squash": ((crop, crop),)}
    options = {"max_size": crop} if fit == "pad" else {}
    scaled: Tensor = v2.Compose([v2.PILToTensor(), v2.Resize(*sizes[fit], antialias=True, **options)])(image)
    left, upper = ((crop - size) // 2 for size in (scaled.shape[2], scaled.shape[1]))
    right, lower = crop - scaled.shape[2] - left, crop - scaled.shape[1] - upper
    colour = [round(255 * mean) for mean in about["mean"]]
    whole = v2.Pad([left, upper, right, lower], fill=colour) if fit == "pad" else v2.CenterCrop(crop)
    found: Tensor = whole(scaled)
    return found


def by_torchvision(model: ImageClassifier, paths: Sequence[str | Path], flips: bool = False) -> tuple[Tensor, Tensor]:
    """Files as input, by torchvision's transforms, and the logits that the network makes of them in float64."""
    about: Preprocessing = model.preprocessing
    images = torch.stack([prepared(Image.open(path), about) for path in paths])
    normalize = v2.Compose([v2.ToDtype(torch.float64, scale=True), v2.Normalize(about["mean"], about["std"])])
    network = deepcopy(model.network).double().eval()
    with torch.inference_mode():
        logits = [network(normalize(view)) for view in ([images, images.flip(3)] if flips else [images])]
    return images, torch.stack(logits).mean(0)


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_predictions_are_those_of_torchvisions_transforms(fit: Fit, tmp_path):
    model, paths = classifier(), [tmp_path / f"{number}.png" for number in range(5)]
    model.preprocessing |= {"resize": 36, "fit": fit}
    for number, path in enumerate(paths):
        draw_image(number / 5, seed=number, size=(50 + 9 * number, 61)).save(path)
    expected = by_torchvision(model, paths)[1].softmax(1)
    found = predict(model, paths, batch_size=2)
    for prediction, row in zip(found, expected, strict=True):
        assert list(prediction.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-4)
        assert prediction.label == model.class_names[int(row.argmax())]
        assert prediction.probability == max(prediction.probabilities.values())


def test_a_file_that_is_no_image_is_named(tmp_path):
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"notes\.jpg"):
        predict(classifier(), [tmp_path / "notes.jpg"])
    assert predict(classifier(), []) == []
