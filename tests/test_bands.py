"""Images of other channels and bits than 8-bit RGB: from files to training, predictions and exported files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from timm.models import adapt_input_conv
from torch.nn.functional import interpolate

from project.data import FolderDataModule
from project.engine.errors import UnreadableFileError, UserError
from project.engine.loading.crops import fit_image
from project.engine.loading.decode import read_bands
from project.engine.preprocessing import Preprocessing, is_preprocessing
from project.export import export
from project.export import parse as parse_export
from project.model import ImageClassifier
from project.model.networks import build_network, with_channels
from project.model.normalize import Normalization
from project.model.pretrained import load_weights
from project.predict import parse, predict
from project.report import parse as parse_report
from project.report import report
from tests.conftest import QUIET, SLIM, TINY_TRAINER, as_in_a_terminal, evaluate, fit
from tests.distributed.processes import forked, succeed
from tests.small import rows

BANDS = ["--data.channels=5", "--data.bits=16"]
SMALL = ["--data.image_size=16", "--data.batch_size=16", "--data.num_workers=0", "--data.crop_scale=[0.5,1]"]
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images of five bands of 16 bits, whose class is in the low 8 bits of the last band alone."""
    root: Path = tmp_path_factory.mktemp("bands") / "images"
    for label, name in enumerate(("dark", "light")):
        (root / name).mkdir(parents=True)
        for number in range(60):
            pixels = RANDOM.integers(0, 2**16, (16 + number % 3, 20, 5), np.uint16)
            pixels[..., 4] = RANDOM.integers(0, 100, pixels.shape[:2]) + 150 * label
            np.save(root / name / f"{number}.npy", pixels)
    return root


@pytest.fixture(scope="module")
def run(folder) -> Path:
    runs = f"--trainer.default_root_dir={folder.parent / 'runs'}"
    options = ["--trainer.max_epochs=6", "--model.optimizer.lr=0.05", "--trainer.precision=32-true", "--name=run"]
    fit(f"--data={folder}", *BANDS, *SMALL, *SLIM, *TINY_TRAINER, *QUIET, *options, runs, drawn=True)
    return folder.parent / "runs" / "run"


@pytest.fixture(scope="module")
def checkpoint(run) -> Path:
    return run / "checkpoints" / "best.ckpt"


def test_a_class_in_the_low_bits_of_the_last_band_is_learnt(run):
    assert json.loads((run / "metrics.json").read_text())["test"]["accuracy"] >= 0.9


def test_a_checkpoint_says_the_bits_and_the_statistics_of_the_training_images(checkpoint, folder):
    files = FolderDataModule(str(folder), channels=5, bits=16).files()["train"]
    images = [np.load(file) / 65535 for paths in files.values() for file in paths]
    mean = np.mean([image.mean((0, 1)) for image in images], 0)
    std = np.sqrt(np.mean([(image**2).mean((0, 1)) for image in images], 0) - mean**2)
    found = ImageClassifier.load_from_checkpoint(checkpoint).preprocessing
    assert found["bits"] == 16
    np.testing.assert_allclose([found["mean"], found["std"]], [mean, std], rtol=1e-9)


def test_evaluation_prediction_and_report_follow_the_checkpoint(run, checkpoint, folder, tmp_path, capsys):
    metrics = json.loads((run / "metrics.json").read_text())["test"]
    assert evaluate(str(checkpoint)).model.results["test"].as_dict()["correct"] == metrics["correct"]
    with as_in_a_terminal():
        one = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--num_workers=0"]
        assert predict(parse([str(checkpoint), str(folder), f"--output={tmp_path / 'rows.csv'}", *one])) == 0
    right = [row["label"] == Path(row["path"]).parent.name for row in rows(tmp_path / "rows.csv")]
    assert len(right) == 120
    assert sum(right) > 108
    assert "data:image/jpeg" in report(parse_report([str(run)])).read_text()
    with pytest.raises(UserError, match="trained with other"):
        evaluate(str(checkpoint), "--data.channels=4")


@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_an_exported_file_takes_the_bands_that_the_checkpoint_does(checkpoint, folder, tmp_path, ending, capsys):
    path = tmp_path / f"model{ending}"
    export(parse_export([str(checkpoint), f"--output={path}", f"--images={folder}"]))
    assert "images: uint16 (N, 5, 16, 16)\n" in capsys.readouterr().out
    if ending == ".onnx":
        images = RANDOM.integers(0, 2**16, (3, 5, 16, 16), np.uint16)
        (found,) = onnxruntime.InferenceSession(path).run(None, {"images": images})
        with torch.inference_mode():
            expected = ImageClassifier.load_from_checkpoint(checkpoint).eval()(torch.from_numpy(images)).softmax(1)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_two_processes_count_each_image_once(run, folder):
    succeed(forked(2, "bands", folder.parent), cwd=folder.parent, timeout=240)
    found = json.loads((folder.parent / "bands.json").read_text())
    assert found == json.loads((run / "metrics.json").read_text())["test"]["confusion_matrix"]


def array(channels: int, bits: int) -> Any:
    shape = (20, 30, channels) if channels > 1 else (20, 30)
    return RANDOM.integers(0, 2**bits, shape).astype(f"uint{bits}")


@pytest.mark.parametrize(
    ("ending", "channels", "bits"),
    [
        *[("npy", 1, 8), ("npy", 7, 16), ("png", 1, 8), ("png", 1, 16), ("png", 2, 8), ("png", 4, 8), ("webp", 3, 8)],
        *[("tif", 1, 8), ("tif", 1, 16), ("tif", 4, 16), ("tif", 6, 8)],
    ],
)
def test_images_are_read_as_they_are_stored(tmp_path, ending, channels, bits):
    path, image = tmp_path / f"image.{ending}", array(channels, bits)
    if ending == "npy":
        np.save(path, image)
    elif ending == "tif":
        tifffile = pytest.importorskip("tifffile", reason="of the extra tiff, which reads such files")
        planar = {"planarconfig": "separate"} if channels == 6 else {}
        stored = np.moveaxis(image, -1, 0) if planar else image
        tifffile.imwrite(path, stored, photometric="minisblack", **planar)
    else:
        Image.fromarray(image).save(path, lossless=True)
    found = read_bands(path, (channels, bits)).permute(1, 2, 0).squeeze(2)
    np.testing.assert_array_equal(found, image)


def test_colours_become_grey_where_one_channel_is_wanted(tmp_path):
    image = Image.fromarray(array(3, 8))
    image.save(tmp_path / "image.png")
    np.testing.assert_array_equal(read_bands(tmp_path / "image.png", (1, 8))[0], image.convert("L"))


def write_header(path: Path, shape: tuple[int, ...]) -> None:
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (
            lambda path: np.save(path, array(3, 8)),
            r"uint8 \(20, 30, 3\), not uint8 \(height, width, 4\); see --data.ch",
        ),
        (lambda path: np.save(path, array(4, 16)), r"uint16 \(20, 30, 4\), not uint8"),
        (lambda path: np.save(path, np.zeros((9, 9, 4))), "float64"),
        (lambda path: np.save(path, np.zeros((1, 1001, 4), np.uint8)), "its shape is"),
        (lambda path: np.save(path, np.zeros((0, 0, 4), np.uint8)), "its shape is"),
        (lambda path: np.save(path, np.array([{}]), allow_pickle=True), "Python objects"),
        (lambda path: write_header(path, (2**20, 2**20, 4)), "file size"),
        (lambda path: path.write_text("no array"), "magic string"),
    ],
)
def test_an_array_that_is_no_such_image_is_refused_in_one_line(tmp_path, write, complaint):
    write(tmp_path / "image.npy")
    with pytest.raises(UnreadableFileError, match=rf"^'[^\n]*image.npy' [^\n]*{complaint}[^\n]*$"):
        read_bands(tmp_path / "image.npy", (4, 8))


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
@pytest.mark.parametrize(("arch", "first"), [("resnet18", "conv1"), ("timm/resnet10t", "conv1.0")])
def test_pretrained_first_layers_are_adapted_as_timm_does(arch, first, channels):
    weights = build_network(arch, 3).state_dict()
    network = with_channels(build_network(arch, 3), channels)
    assert load_weights(network, weights, "", 3) == []
    expected = adapt_input_conv(channels, weights[f"{first}.weight"])
    torch.testing.assert_close(network.state_dict()[f"{first}.weight"], expected, rtol=0, atol=0)


def test_16_bits_are_scaled_and_normalised_as_precise_numbers():
    said: Preprocessing = {"resize": 24, "crop": 16, "mean": [0.5, 0.001], "std": [0.25, 0.002], "bits": 16}
    image = torch.from_numpy(RANDOM.integers(0, 2**16, (2, 48, 48)).astype(np.uint16))
    scaled = interpolate(image[None].double(), (24, 24), mode="bilinear", antialias=True)[0, :, 4:20, 4:20]
    found = fit_image(image, said)
    torch.testing.assert_close(found.double(), scaled, rtol=0, atol=0.51)
    normal = Normalization(said)(found[None], like=torch.empty(0, dtype=torch.bfloat16))[0]
    mean, std = (torch.tensor(said[key]).double()[:, None, None] for key in ("mean", "std"))  # type: ignore[literal-required]
    torch.testing.assert_close(normal, ((found.double() / 65535 - mean) / std).bfloat16(), rtol=0.01, atol=1e-3)


@pytest.mark.parametrize(
    ("bits", "channels", "crop"), [(None, 4, 8), (12, 3, 8), ("16", 3, 8), (16, 4, 2**12), (8, 0, 8)]
)
def test_a_file_cannot_describe_images_that_there_are_not(bits, channels, crop):
    said = {"resize": crop, "crop": crop, "mean": [0.5] * channels, "std": [0.5] * channels}
    assert not is_preprocessing(said | ({} if bits is None else {"bits": bits}))
