"""The page docs/deploying.md: each block of code that it shows is run."""

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from base64 import b64encode
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from project.analysis.prediction import predict
from project.engine.loading.crops import fit_image
from project.engine.loading.decode import decode, open_image
from project.engine.preprocessing import Fit, Preprocessing
from project.export import export, parse
from project.model import ImageClassifier
from tests.conftest import draw_image, make_folder

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "deploying.md").read_text()
PREPARE, ON_ONNX, ON_TORCH, SERVE = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SIZES = [(40, 32), (32, 40), (37, 37), (500, 333), (333, 500), (91, 20), (36, 36), (64, 47)]


def prepare(image: Image.Image, preprocessing: Preprocessing) -> Any:
    """What the page makes of an image."""
    names: dict[str, Any] = {}
    exec(PREPARE, names)
    about = {"fit": "crop", "interpolation": "bilinear", **preprocessing}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
    return names["prepare"](image, texts)


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("crop", [32, 33])
def test_the_page_prepares_images_as_evaluation_does(tmp_path, fit: Fit, crop):
    preprocessing: Preprocessing = {
        "resize": 37, "crop": crop, "fit": fit, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]
    }  # fmt: skip
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, size in enumerate(SIZES):
        image, path = draw_image(number / 8, seed=number, size=size), tmp_path / f"{number}.jpg"
        (image.convert("L") if number == 2 else image).save(path, exif=turned if number % 3 == 0 else Image.Exif())
        with open_image(path) as opened:
            expected = fit_image(decode(opened, path), preprocessing).numpy()
        found = prepare(Image.open(path), preprocessing)
        assert (found.dtype, found.shape) == (np.uint8, expected.shape)
        assert np.abs(found.astype(int) - expected).max() <= 1, (fit, size)


@pytest.fixture(scope="module")
def place(tiny_run, tmp_path_factory) -> Path:
    """A folder with the page's files, both models, and images."""
    folder: Path = tmp_path_factory.mktemp("place")
    for suffix in ("onnx", "pt2"):
        checkpoint = tiny_run / "checkpoints" / "best.ckpt"
        export(parse([f"--ckpt_path={checkpoint}", f"--output={folder / 'model'}.{suffix}"]))
    make_folder(folder / "images", dict.fromkeys("abcdefgh", 6))
    draw_image(0.3, seed=1, size=(70, 50)).save(folder / "photo.jpg")
    (folder / "prepare.py").write_text(PREPARE)
    return folder


def test_labels_and_probabilities_are_those_of_the_checkpoint(place, tiny_run):
    model = ImageClassifier.load_from_checkpoint(tiny_run / "checkpoints" / "best.ckpt")
    files = sorted((place / "images").rglob("*.jpg"))
    session = onnxruntime.InferenceSession(place / "model.onnx")
    inputs = np.stack([prepare(Image.open(file), model.preprocessing) for file in files])
    found = session.run(None, {"images": inputs})[0]
    expected = predict(model, files)
    assert [model.class_names[row.argmax()] for row in found] == [prediction.label for prediction in expected]
    probabilities = np.array([list(prediction.probabilities.values()) for prediction in expected])
    np.testing.assert_allclose(found, probabilities, atol=0.02)  # a pixel may differ by 1 of 255


@pytest.mark.parametrize("code", [ON_ONNX, ON_TORCH], ids=["onnx", "torch"])
def test_a_photo_is_labelled_in_a_few_lines(place, tiny_run, monkeypatch, capsys, code):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    exec(code, {})
    label, probability = capsys.readouterr().out.rsplit(maxsplit=1)
    (expected,) = predict(ImageClassifier.load_from_checkpoint(tiny_run / "checkpoints" / "best.ckpt"), ["photo.jpg"])
    assert label == expected.label
    assert float(probability) == pytest.approx(expected.probability, abs=0.02)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("litserve") is None, reason="LitServe is not installed; pip install litserve")
def test_the_server_is_right_under_load_and_refuses_what_is_broken(place, capsys):
    script = runpy.run_path(str(DOCS.parent / "scripts" / "load_test.py"))
    ask, url = script["ask"], "http://127.0.0.1:8765/predict"
    (place / "serve.py").write_text(SERVE.replace("port=8000", "port=8765"))
    command = [sys.executable, "serve.py"]
    pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=place, start_new_session=True, **pipe) as server:
        assert server.stdout is not None
        try:
            assert any("startup complete" in line for line in server.stdout)
            photo = (place / "photo.jpg").read_bytes()
            uploads = [b64encode(content).decode() for content in (photo, b"no image" * 99, photo[:500])]
            bodies = [json.dumps({"image": text}).encode() for text in (*uploads, "A" * 11_000_000)]
            answers = [ask(url, body) for body in (*bodies, b"{")]
            assert [answer.status for answer in answers] == [200, 400, 400, 413, 422]
            assert sum(answers[0].content.values()) == pytest.approx(1, abs=1e-5)
            assert script["main"]([url, str(place / "images"), "--requests=300", "--concurrency=64"]) == 0
            assert "wrong    0" in capsys.readouterr().out
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # its workers, too, which do not end with it


@pytest.mark.parametrize("command", re.findall(r"^    python -m project\.export (.*)$", PAGE, re.M))
def test_an_export_command_is_accepted(command):
    assert parse(shlex.split(command)).ckpt_path == "runs/NAME/checkpoints/best.ckpt"
