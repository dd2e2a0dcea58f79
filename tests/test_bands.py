"""Images of other channels and bits than 8-bit RGB: from files to training, predictions and exported files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from lightkeeper.exact._errors import UnreadableFileError
from lightkeeper.images import Preprocessing
from lightkeeper.images._decode import read_bands
from lightkeeper.images._preprocessing import fit_image
from PIL import Image
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
    cases,
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


@cases(
    "ending shape bits",
    *(("npy", (20, 30), 8), ("npy", (20, 30, 7), 16), ("png", (20, 30), 8), ("png", (20, 30), 16)),
    *(
        ("png", (20, 30, 2), 8),
        ("png", (20, 30, 4), 8),
        ("png", (20, 30, 3), 16),
        ("png", (20, 30, 4), 16),
    ),
    *(("tif", (20, 30), 16), ("tif", (20, 30, 5), 16)),
)
def test_images_are_read_as_they_are_stored(tmp_path, ending, shape, bits):
    path, image = (
        tmp_path / f"image.{ending}",
        RANDOM.integers(0, 2**bits, shape).astype(f"uint{bits}"),
    )
    if ending == "npy":
        np.save(path, image)
    elif ending == "tif":
        tifffile = pytest.importorskip(
            "tifffile", reason="of the extra tiff, which reads such files"
        )
        tifffile.imwrite(
            path, image, photometric="minisblack", planarconfig="contig" if image.ndim > 2 else None
        )
    elif (bits, image.ndim) == (16, 3):
        imagecodecs = pytest.importorskip("imagecodecs", reason="of the extra tiff, as tifffile")
        path.write_bytes(imagecodecs.png_encode(image))
    else:
        Image.fromarray(image).save(path)
    found = read_bands(path, (shape[2] if len(shape) > 2 else 1, bits))
    np.testing.assert_array_equal(found.permute(1, 2, 0).reshape(shape), image)


def npy(header: str) -> bytes:
    return b"\x93NUMPY\1\0\x46\0" + header.encode().ljust(70)


ARRAYS: list[tuple[object, str]] = [
    (
        np.zeros((9, 9, 3), np.uint8),
        r"uint8 \(9, 9, 3\), not uint8 \(height, width, 4\); see the option",
    ),
    (np.zeros((9, 9, 4), np.uint16), r"uint16 \(9, 9, 4\), not uint8"),
    (np.zeros((1, 1001, 4), np.uint8), "one side is more than 1000 times"),
    (np.zeros((0, 0, 4), np.uint8), "one side is"),
    (np.array([{}]), "Python objects"),
    (npy("{'descr':'|u1','fortran_order':False,'shape':(2048,2048,4)}"), "file size"),
    (npy("{'descr':'|u1','fortran_order':False,'shape':(9,9,4)"), "cannot be read"),
    (b"no array", "magic string"),
]
TWELVE_BITS = b"P5 2 1 4095\n\x0f\xff\x01\x02"  # which PIL would clip to 8


@cases(
    "content complaint name bands",
    *((*row, "a.npy", (4, 8)) for row in ARRAYS),
    (TWELVE_BITS, "it is int32", "a.ppm", (1, 8)),
)
def test_what_is_no_such_image_is_refused_in_one_line(tmp_path, content, complaint, name, bands):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(
        path, content, allow_pickle=True
    )
    with pytest.raises(UnreadableFileError, match=rf"^'[^\n]*{name}' [^\n]*{complaint}[^\n]*$"):
        read_bands(path, bands)


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
