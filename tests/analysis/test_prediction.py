"""Image files are labelled as torchvision's transforms and the network would."""

from importlib import import_module
from typing import Any

import pytest
import torch
from PIL import Image

from project.analysis.prediction import predict
from project.engine.errors import UserError
from project.model import ImageClassifier
from tests.conftest import draw_image

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types


MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]


def pad(image):
    height, width = image.shape[1:]
    left, upper = (32 - width) // 2, (32 - height) // 2
    return v2.functional.pad(image, [left, upper, 32 - width - left, 32 - height - upper], fill=[102, 128, 153])


FITS = {
    "crop": [v2.Resize(36, antialias=True), v2.CenterCrop(32)],
    "pad": [v2.Resize(None, max_size=32, antialias=True), pad],
    "squash": [v2.Resize((32, 32), antialias=True)],
}


@pytest.fixture(params=FITS)
def fit(request):
    return request.param


@pytest.fixture
def model(fit):
    torch.manual_seed(0)
    preprocessing = {"resize": 36, "crop": 32, "fit": fit, "mean": MEAN, "std": STD}
    return ImageClassifier(["a", "b", "c"], preprocessing, arch="resnet9_slim")  # type: ignore[arg-type]


def test_predictions_are_those_of_torchvisions_transforms(model, fit, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        draw_image(number / 5, seed=number, size=(50 + 9 * number, 61)).save(path)
    to_input = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    prepare = v2.Compose([v2.PILToTensor(), *FITS[fit], *to_input])
    images = torch.stack([prepare(Image.open(path)) for path in paths])
    expected = model.eval().network(images).softmax(1)
    found = predict(model, paths, batch_size=2)
    for prediction, row in zip(found, expected, strict=True):
        assert list(prediction.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-4)
        assert prediction.label == "abc"[int(row.argmax())]
        assert prediction.probability == max(prediction.probabilities.values())


def test_a_file_that_is_no_image_is_named(model, tmp_path):
    (tmp_path / "notes.jpg").write_text("no image")
    with pytest.raises(UserError, match=r"notes\.jpg"):
        predict(model, [tmp_path / "notes.jpg"])
    assert predict(model, []) == []
