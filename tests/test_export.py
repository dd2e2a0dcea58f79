"""The promises of ``python -m project.export``, and the code of docs/after_training.md."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from project import export
from project.engine import UserError
from project.engine.commands.export import (
    generated_images,
    load_onnx,
    load_pt2,
    write_onnx,
)
from project.engine.loading.crops import fit_image
from project.engine.loading.decode import decode, open_image
from project.engine.preprocessing import Fit, Preprocessing
from project.engine.run.checkpoint import ABOUT
from project.model import ImageClassifier
from project.model.test_time import ProbabilityNetwork
from tests.analysis.test_prediction import by_torchvision
from tests.conftest import ROOT, call, cases, draw_image
from tests.distributed.job import classifier
from tests.distributed.processes import free_port, started, wait_until
from tests.small import load, one_line

NAMES = ["daisy", 'a "quoted" name', "comma, name", "向日葵", "{}", "line\nend", "null", " "]
LOADERS = {".onnx": load_onnx, ".pt2": load_pt2}
DEPLOY = ROOT / "examples" / "deploy"


def run(checkpoint: Path, output: Path, *args: str) -> None:
    call(export, checkpoint, f"--output={output}", *args)


@pytest.fixture(scope="module")
def place(tiny_run, tmp_path_factory) -> Path:
    """A folder with the page's files and a checkpoint of classes with odd names, exported both ways."""
    folder: Path = tmp_path_factory.mktemp("place")
    (folder / "photos").mkdir()
    for number in range(8):
        image = draw_image(number / 8, seed=number, size=(40 + 7 * number, 90 - 5 * number))
        image.save(folder / "photos" / f"{number}.jpg")
    shutil.copy(folder / "photos" / "3.jpg", folder / "photo.jpg")
    shutil.copy(DEPLOY / "prepare.py", folder)
    trained = tiny_run / "checkpoints" / "best.ckpt"
    _, logits = by_torchvision(
        ImageClassifier.load_from_checkpoint(trained), sorted((folder / "photos").iterdir())
    )
    found = load(trained)
    found[ABOUT]["class_names"] = found["hyper_parameters"]["class_names"] = NAMES
    for name in ("weight", "bias"):
        found["state_dict"][f"network.fc.{name}"] *= (
            2 / logits.std()
        )  # probabilities neither all alike nor all 0 and 1
    torch.save(found, folder / "odd.ckpt")
    for suffix in LOADERS:
        run(folder / "odd.ckpt", folder / f"model{suffix}", f"--images={folder / 'photos'}")
    return folder


@pytest.fixture(params=LOADERS)
def exported(request, place: Path) -> Path:
    return place / f"model{request.param}"


@pytest.fixture(scope="module")
def photos(place) -> tuple[torch.Tensor, torch.Tensor]:
    """The photos as input, and the probabilities that the checkpoint's network gives them."""
    model = ImageClassifier.load_from_checkpoint(place / "odd.ckpt")
    images, logits = by_torchvision(model, sorted((place / "photos").iterdir()))
    return images, logits.softmax(1)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_probabilities_are_those_of_the_checkpoint_in_any_batch(exported, photos, size):
    images, expected = photos
    assert (
        (expected > 0.3) & (expected < 0.7)
    ).any()  # where all are alike, or 0 and 1, there is nothing to see
    found = torch.cat([LOADERS[exported.suffix](exported)(batch) for batch in images.split(size)])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_the_file_says_what_it_needs_to_be_used(exported, place):
    about = load(place / "odd.ckpt")[ABOUT]["preprocessing"]
    if exported.suffix == ".onnx":
        found = (
            (session := onnxruntime.InferenceSession(exported)).get_modelmeta().custom_metadata_map
        )
        assert [
            (put.name, put.type, put.shape)
            for put in (*session.get_inputs(), *session.get_outputs())
        ] == [
            ("images", "tensor(uint8)", ["batch", 3, about["crop"], about["crop"]]),
            ("probabilities", "tensor(float)", ["batch", len(NAMES)]),
        ]
    else:
        found = dict.fromkeys(["class_names", *about, "fit", "interpolation", "antialias"], "")
        torch.export.load(exported, extra_files=found)
    assert json.loads(found["class_names"]) == NAMES
    assert all(json.loads(found[name]) == about[name] for name in ("resize", "crop", "mean", "std"))
    assert [found[name] for name in ("fit", "interpolation", "antialias")] == [
        "crop",
        "bilinear",
        "true",
    ]
    content = exported.read_bytes()  # which names no file of this machine
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content


def test_a_file_that_is_not_the_checkpoint_is_not_left(place, tmp_path, monkeypatch):
    class Tampered(ProbabilityNetwork):
        def __init__(self, model: ImageClassifier) -> None:
            super().__init__(model)
            self.network.get_submodule("fc").bias.data[0] += 0.01

    monkeypatch.setattr("project.model.test_time.ProbabilityNetwork", Tampered)
    (tmp_path / "odd.pt2").write_bytes(b"before")
    with pytest.raises(UserError, match="probabilities differ by up to"):
        run(place / "odd.ckpt", tmp_path / "odd.pt2", "--overwrite")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("odd.pt2", b"before")
    ]


@cases(
    "args expected",
    (["{}", "--output=model.bin"], r"--output must end in \.onnx or \.pt2 or /, got 'model\.bin'"),
    (["{}", "--output=nowhere/model.onnx"], "cannot be written; is its folder there"),
    (["{}", "--output=folder.onnx", "--overwrite"], "timm has no network like resnet9_slim"),
    (["{}", "--output=model.pt2", "--images=folder.onnx"], r"--images: there are no images"),
    (["nowhere.ckpt", "--output=model.onnx"], r"there is no file 'nowhere\.ckpt'"),
    (["cut.ckpt", "--output=model.onnx"], r"'cut\.ckpt' is damaged"),
)
def test_a_mistake_is_one_line(place, workplace, capsys, args, expected):
    Path("folder.onnx").mkdir()
    Path("cut.ckpt").write_bytes((place / "odd.ckpt").read_bytes()[:1000])
    before = sorted(workplace.rglob("*"))
    text = one_line(lambda: call(export, *(arg.format(place / "odd.ckpt") for arg in args)), capsys)
    assert re.search(expected, text)
    assert sorted(workplace.rglob("*")) == before


def test_a_missing_package_is_named(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    line = one_line(lambda: run(place / "odd.ckpt", tmp_path / "odd.onnx"), capsys)
    assert "onnxscript" in line


class HardNet(torch.nn.Sequential):
    """A network with each operator that exporters write as HardSigmoid."""

    def __init__(self, num_classes: int) -> None:
        linear = torch.nn.Linear(16, num_classes)
        torch.nn.init.normal_(linear.weight)  # probabilities that differ
        head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), linear]
        hard = [torch.nn.Hardswish(), torch.nn.Conv2d(16, 16, 1), torch.nn.Hardsigmoid()]
        super().__init__(
            torch.nn.Conv2d(3, 16, 5, stride=4), *hard, torch.nn.BatchNorm2d(16), *head
        )


def test_hard_sigmoids_are_written_as_operators_that_all_runtimes_know(tmp_path):
    model, path = classifier(arch=f"{__name__}.HardNet").eval(), tmp_path / "model.onnx"
    write_onnx(ProbabilityNetwork(model).eval().requires_grad_(False), model, path)
    images = generated_images(model.preprocessing)
    with torch.inference_mode():
        expected = model(images).softmax(1)
    operators = [node.op_type for node in onnx.load(path).graph.node]
    assert "HardSigmoid" not in operators
    assert "Clip" in operators
    assert expected.std(0).max() > 0.1
    torch.testing.assert_close(load_onnx(path)(images), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("crop", [32, 33])
def test_the_example_prepares_images_as_evaluation_does(tmp_path, fit: Fit, crop):
    preprocessing = Preprocessing(
        resize=37, crop=crop, fit=fit, mean=[0.4, 0.5, 0.6], std=[0.2, 0.2, 0.2]
    )
    prepare = runpy.run_path(str(DEPLOY / "prepare.py"))["prepare"]
    about = {"interpolation": "bilinear", **preprocessing}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in about.items()
    }
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, size in enumerate(
        [(40, 32), (32, 40), (37, 37), (500, 333), (333, 500), (91, 20), (36, 36), (64, 47)]
    ):
        image, path = draw_image(number / 8, seed=number, size=size), tmp_path / f"{number}.jpg"
        (image.convert("L") if number == 2 else image).save(
            path, exif=turned if number % 3 == 0 else Image.Exif()
        )
        with open_image(path) as opened:
            expected = fit_image(decode(opened, path), preprocessing).numpy()
        found = prepare(Image.open(path), texts)
        assert (found.dtype, found.shape) == (np.uint8, expected.shape)
        assert np.abs(found.astype(int) - expected).max() <= 1, (fit, size)


@pytest.mark.parametrize("script", ["onnx_runtime.py", "plain_torch.py"])
def test_a_photo_is_labelled_without_this_project(place, photos, script):
    guard = 'import sys\nsys.modules["project"] = sys.modules["lightning"] = None  # importing them would raise\n'
    command = [sys.executable, "-c", guard + (DEPLOY / script).read_text()]
    found = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    label, probability = found.stdout.rstrip("\n").rsplit(" ", 1)
    assert label == NAMES[photos[1][3].argmax()]
    assert float(probability) == pytest.approx(
        photos[1][3].max().item(), abs=0.02
    )  # a pixel may differ by 1 of 255


def test_the_example_quantizes_to_8_bits(place, photos, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    runpy.run_path(str(DEPLOY / "quantize.py"))
    images, expected = photos
    torch.testing.assert_close(
        load_onnx(place / "small.onnx")(images).double(), expected, rtol=0, atol=0.1
    )
    graph = onnx.load(place / "small.onnx")
    weights = [onnx.numpy_helper.to_array(one) for one in graph.graph.initializer]
    weights = [one for one in weights if one.dtype == np.int8]
    assert sum(one.ndim == 4 for one in weights) == 8  # the convolutions of a ResNet-9
    assert max(np.abs(one.astype(int)).max() for one in weights) <= 64
    assert (
        json.loads({entry.key: entry.value for entry in graph.metadata_props}["class_names"])
        == NAMES
    )
    assert (place / "small.onnx").stat().st_size < 0.35 * (place / "model.onnx").stat().st_size


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("litserve") is None, reason="LitServe is not installed; pip install litserve"
)
def test_the_server_is_right_under_load_and_refuses_what_is_broken(place, tmp_path, capsys):
    port = free_port()
    for file in (place / "model.onnx", DEPLOY / "prepare.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "serve.py").write_text(
        (DEPLOY / "serve.py").read_text().replace("port=8000", f"port={port}")
    )
    photo = (place / "photo.jpg").read_bytes()
    script, url = (
        runpy.run_path(str(ROOT / "scripts" / "load_test.py")),
        f"http://127.0.0.1:{port}/predict",
    )
    with started([sys.executable, "serve.py"], tmp_path):
        wait_until(lambda: "startup complete" in (tmp_path / "log").read_text(), tmp_path)
        images = [b64encode(content).decode() for content in (photo, b"no image" * 99, photo[:500])]
        bodies = [json.dumps({"image": image}).encode() for image in (*images, "A" * 11_000_000)]
        answers = [script["ask"](url, body) for body in (*bodies, b"{")]
        assert [answer.status for answer in answers] == [200, 400, 400, 413, 422]
        assert sum(answers[0].content.values()) == pytest.approx(1, abs=1e-5)
        assert (
            script["main"]([url, str(place / "photos"), "--requests=300", "--concurrency=64"]) == 0
        )
        assert "wrong    0" in capsys.readouterr().out


def test_the_page_to_try_shows_the_checkpoints_probabilities_and_grad_cam(tiny_run, tmp_path):
    pytest.importorskip("gradio", reason="gradio is no requirement")
    draw_image(0.2, seed=1).save(tmp_path / "photo.png")
    best = tiny_run / "checkpoints" / "best.ckpt"
    page = runpy.run_path(str(DEPLOY / "demo.py"))["page"](best, str(tmp_path / "photo.png"))
    shares, seen = page.fn(str(tmp_path / "photo.png"))
    model = ImageClassifier.load_from_checkpoint(best)
    assert shares == model.predict_files([tmp_path / "photo.png"])[0].probabilities
    assert seen.size == (300, 300)
