"""A quantised file is small however many views of an image it takes."""

from typing import Any

import numpy as np
import torch

from project.deploy.formats import load_onnx, write_onnx
from project.deploy.quantize import quantize_to_int8
from project.engine.preprocessing import Preprocessing
from project.model import ImageClassifier

PREPROCESSING: Preprocessing = {"resize": 36, "crop": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}
IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), np.uint8))


def test_the_views_of_an_image_share_their_weights(tmp_path):
    sizes = []
    for views in (None, "flip"):
        torch.manual_seed(0)
        options: Any = {"arch": "resnet9_slim", "test_time_augmentation": views}
        model = ImageClassifier(["a", "b", "c"], PREPROCESSING, **options).eval()
        write_onnx(model, tmp_path / "float.onnx")
        quantize_to_int8(tmp_path / "float.onnx", tmp_path / "int8.onnx", IMAGES)
        found, expected = (load_onnx(tmp_path / f"{kind}.onnx")(IMAGES) for kind in ("int8", "float"))
        torch.testing.assert_close(found, expected, rtol=0, atol=0.02)
        sizes.append((tmp_path / "int8.onnx").stat().st_size)
    assert sizes[1] < 1.05 * sizes[0] < 0.3 * (tmp_path / "float.onnx").stat().st_size
