from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from project.deploy.formats import load_onnx, load_pt2, write_onnx, write_pt2
from project.engine.preprocessing import Preprocessing
from project.model import ImageClassifier

PREPROCESSING: Preprocessing = {"resize": 36, "crop": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}


IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32), np.uint8))


def untrained(arch: str) -> ImageClassifier:
    """A model with statistics of other images than those that a fresh one expects, and a head that tells apart."""
    torch.manual_seed(0)
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch=arch)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None  # so that one batch decides
    head: Any = model.network.fc
    with torch.no_grad():
        model(IMAGES)
        head.weight.normal_(0, 2 / (model(IMAGES).std() / head.weight.std()))
    return model.eval()


def in_float64(model: ImageClassifier) -> Tensor:
    """What the network makes of the images, normalised as in any textbook."""
    mean, std = (torch.tensor(PREPROCESSING[name], dtype=torch.float64) for name in ("mean", "std"))
    inputs = (IMAGES.double() / 255 - mean[:, None, None]) / std[:, None, None]
    with torch.inference_mode():
        probabilities: Tensor = model.network.double()(inputs).softmax(1)
    return probabilities


@pytest.mark.parametrize(("write", "load", "suffix"), [(write_onnx, load_onnx, "onnx"), (write_pt2, load_pt2, "pt2")])
@pytest.mark.parametrize(
    "arch",
    [
        "resnet9_slim",
        pytest.param("resnet18", marks=pytest.mark.slow),
        pytest.param("resnext50_32x4d", marks=pytest.mark.slow),
    ],
)
def test_networks_compute_what_they_do_in_float64(tmp_path, write, load, suffix, arch):
    model = untrained(arch)
    write(model, tmp_path / f"model.{suffix}")
    assert next(model.parameters()).is_contiguous(memory_format=torch.channels_last)  # it stays as it was
    found, expected = load(tmp_path / f"model.{suffix}")(IMAGES), in_float64(model)
    assert expected.std() > 0.05
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)


def test_onnx_runtime_computes_with_as_many_threads_as_torch(tmp_path, monkeypatch):
    given: list[int] = []

    def session(path, options, **further):
        given.append(options.intra_op_num_threads)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            load_onnx(tmp_path / "model.onnx")
    finally:
        torch.set_num_threads(before)
    assert given == [1, 3]
