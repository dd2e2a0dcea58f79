"""Images of other channels and bits than 8-bit RGB: from files to training, predictions and exported files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightkeeper.images import Preprocessing
from lightkeeper.images._preprocessing import fit_image
from timm.models import adapt_input_conv
from torch.nn.functional import interpolate

from project import export
from project.data import FolderDataModule
from project.model.networks import build_network, set_channels
from project.model.normalize import Normalization
from project.model.pretrained import load_weights
from tests.conftest import (
    FAST,
    QUIET,
    SLIM,
    SMALL_FILES,
    TINY_TRAINER,
    call,
    evaluate,
    fit,
    label,
    opened,
    read_json,
    report_of,
    rows,
)

OPTIONS = [
    *SMALL_FILES,
    *("--data.image_size=[16,18]", "--data.batch_size=16", "--data.crop_scale=[0.5,1]"),
    *(*SLIM, *TINY_TRAINER, *QUIET, *FAST, "--trainer.max_epochs=6", "--model.optimizer.lr=0.05"),
    *("--data.channels=5", "--data.bits=16", "--trainer.precision=32-true", "--name=run"),
]
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run on images of five bands of 16 bits, whose class is in the low 8 bits of the last band alone."""
    root: Path = tmp_path_factory.mktemp("bands")
    for light, name in enumerate(("dark", "light")):
        (root / "images" / name).mkdir(parents=True)
        for number in range(60):
            pixels = RANDOM.integers(0, 2**16, (16 + number % 3, 20, 5), np.uint16)
            pixels[..., 4] = RANDOM.integers(0, 100, pixels.shape[:2]) + 150 * light
            np.save(root / "images" / name / f"{number}.npy", pixels)
    fit(f"--data={root / 'images'}", *OPTIONS, f"--trainer.default_root_dir={root / 'runs'}")
    return root / "runs" / "run"


def test_a_run_learns_from_all_bits_and_the_checkpoint_has_the_statistics_of_its_training_images(
    run,
):
    assert read_json(run / "metrics.json")["test"]["accuracy"] >= 0.9
    files = FolderDataModule(str(run.parents[1] / "images"), channels=5, bits=16).files()
    images = [np.load(file.path) / 65535 for file in files if file.split == "train"]
    mean = np.mean([image.mean((0, 1)) for image in images], 0)
    std = np.sqrt(np.mean([(image**2).mean((0, 1)) for image in images], 0) - mean**2)
    found = opened(run)[0].preprocessing
    np.testing.assert_allclose([found["mean"], found["std"]], [mean, std], rtol=1e-9)


@pytest.mark.slow
def test_evaluation_prediction_export_and_report_follow_the_checkpoint(run, tmp_path, capsys):
    best, images = str(run / "checkpoints" / "best.ckpt"), str(run.parents[1] / "images")
    metrics = read_json(run / "metrics.json")["test"]
    assert evaluate(best).model.results["test"]["correct"] == metrics["correct"]
    assert label(best, images, f"--output={tmp_path / 'rows.csv'}") == 0
    right = [row["label"] == Path(row["path"]).parent.name for row in rows(tmp_path / "rows.csv")]
    assert sum(right) > 108
    for ending in ("onnx", "pt2"):  # which compares probabilities itself
        call(export, best, f"--output={tmp_path / ending}.{ending}")
        assert "images: uint16 (N, 5, height, width)" in capsys.readouterr().out
    assert "data:image/jpeg" in report_of(run).read_text()


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize(
    ("arch", "first"), [("resnet18", "conv1.weight"), ("timm/resnet10t", "conv1.0.weight")]
)
def test_pretrained_first_layers_are_adapted_as_timm_does(arch, first, channels):
    weights, network = build_network(arch, 3).state_dict(), build_network(arch, 3)
    set_channels(network, channels)
    assert "new" not in load_weights(network, weights, "", ["a", "b", "c"])
    assert torch.equal(network.state_dict()[first], adapt_input_conv(channels, weights[first]))


def test_16_bits_are_scaled_and_normalised_as_precise_numbers():
    said: Preprocessing = {
        "resize": 24,
        "crop": 16,
        "mean": [0.5, 0.001],
        "std": [0.25, 0.002],
        "bits": 16,
    }
    image = torch.from_numpy(RANDOM.integers(0, 2**16, (2, 48, 48)).astype(np.uint16))
    scaled = interpolate(image[None].double(), (24, 24), mode="bilinear", antialias=True)[
        :, :, 4:20, 4:20
    ]
    found = fit_image(image, said)[None]
    torch.testing.assert_close(found.double(), scaled, rtol=0, atol=0.51)
    mean, std = (
        torch.tensor(values).double()[:, None, None] for values in (said["mean"], said["std"])
    )
    expected = ((found.double() / 65535 - mean) / std).bfloat16()
    torch.testing.assert_close(
        Normalization(said)(found, like=expected[:0]), expected, rtol=0.01, atol=1e-3
    )
