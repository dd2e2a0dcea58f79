"""Image files are labelled as torchvision's transforms and the network would."""

from importlib import import_module
from typing import Any

import pytest
import torch
from PIL import Image

from project.errors import UserError
from project.explore.prediction import predict
from project.model import ImageClassifier
from tests.conftest import draw_image

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types


@pytest.fixture
def model():
    torch.manual_seed(0)
    preprocessing = {"resize": 36, "crop": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
    return ImageClassifier(["a", "b", "c"], preprocessing, arch="resnet9_slim", stem="cifar")  # type: ignore[arg-type]


def test_predictions_are_those_of_torchvisions_transforms(model, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for number, path in enumerate(paths):
        draw_image(number / 5, seed=number, size=(50 + 9 * number, 61)).save(path)
    prepare = v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(36, antialias=True),
            v2.CenterCrop(32),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3]),
        ]
    )
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
