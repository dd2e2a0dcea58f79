"""The promises of ``python -m project.export``."""

import json
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision.transforms.v2
from PIL import Image

from project import export as command
from project.deploy.formats import load_onnx, load_pt2, write_pt2
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.export import export, parse
from project.model import ImageClassifier
from tests.conftest import draw_image
from tests.small import one_line

NAMES = ["daisy", 'a "quoted" name', "comma, name", "向日葵", "{}", "line\nend", "null", " "]
LOADERS = {".onnx": load_onnx, ".pt2": load_pt2}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Image files of several sizes."""
    folder: Path = tmp_path_factory.mktemp("images")
    for number in range(8):
        draw_image(number / 8, seed=number, size=(40 + 7 * number, 90 - 5 * number)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tiny_run, images, tmp_path_factory) -> Path:
    """A checkpoint alone, of classes with odd names, whose probabilities are neither all alike nor all 0 and 1."""
    trained = tiny_run / "checkpoints" / "best.ckpt"
    logits = by_torchvision(trained, images)[1]
    found = torch.load(trained, weights_only=True)
    found[ABOUT]["class_names"] = found["hyper_parameters"]["class_names"] = NAMES
    for name in ("weight", "bias"):
        found["state_dict"][f"network.fc.{name}"] *= 2 / logits.std()
    path: Path = tmp_path_factory.mktemp("export") / "odd.ckpt"
    torch.save(found, path)
    return path


@pytest.fixture(scope="module")
def onnx_file(checkpoint, images, tmp_path_factory) -> Path:
    """The checkpoint as ONNX."""
    path: Path = tmp_path_factory.mktemp("onnx") / "odd.onnx"
    run(checkpoint, path, f"--images={images}")
    return path


@pytest.fixture(scope="module")
def pt2_file(checkpoint, images, tmp_path_factory) -> Path:
    """The checkpoint as a program of torch.export."""
    path: Path = tmp_path_factory.mktemp("pt2") / "odd.pt2"
    run(checkpoint, path, f"--images={images}")
    return path


@pytest.fixture(scope="module", params=["onnx_file", "pt2_file"])
def exported(request) -> Path:
    """Either."""
    path: Path = request.getfixturevalue(request.param)
    return path


def run(checkpoint: Path, output: Path, *args: str) -> None:
    """Runs the command in this process."""
    export(parse([f"--ckpt_path={checkpoint}", f"--output={output}", *args]))


def by_torchvision(checkpoint: Path, images: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The files as input, by torchvision from PIL's pixels, and the logits that the network makes of them in float64."""
    model = ImageClassifier.load_from_checkpoint(checkpoint).double().eval()
    about = model.preprocessing
    v2: Any = torchvision.transforms.v2
    crop = v2.Compose([v2.Resize(about["resize"], antialias=True), v2.CenterCrop(about["crop"])])
    files = sorted(images.glob("*.png"))
    inputs = torch.stack([crop(torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)) for file in files])
    normalize = v2.Compose([v2.ToDtype(torch.float64, scale=True), v2.Normalize(about["mean"], about["std"])])
    with torch.inference_mode():
        return inputs, model.network(normalize(inputs))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_probabilities_are_those_of_the_checkpoint_in_any_batch(exported, checkpoint, images, size):
    inputs, logits = by_torchvision(checkpoint, images)
    expected = logits.softmax(1)
    assert (
        (expected > 0.3) & (expected < 0.7)
    ).any()  # where all were alike, or 0 and 1, there would be nothing to see
    found = torch.cat([LOADERS[exported.suffix](exported)(batch) for batch in inputs.split(size)])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


def test_the_file_says_what_it_needs_to_be_used(exported, checkpoint):
    about = torch.load(checkpoint, weights_only=True)[ABOUT]["preprocessing"]
    if exported.suffix == ".onnx":
        session = onnxruntime.InferenceSession(exported)
        found = session.get_modelmeta().custom_metadata_map
        assert [(put.name, put.type, put.shape) for put in (*session.get_inputs(), *session.get_outputs())] == [
            ("images", "tensor(uint8)", ["batch", 3, about["crop"], about["crop"]]),
            ("probabilities", "tensor(float)", ["batch", len(NAMES)]),
        ]
    else:
        found = dict.fromkeys(["class_names", *about, "fit", "interpolation", "antialias"], "")
        torch.export.load(exported, extra_files=found)
    assert json.loads(found["class_names"]) == NAMES
    assert {name: json.loads(found[name]) for name in ("resize", "crop", "mean", "std")} == {
        name: about[name] for name in ("resize", "crop", "mean", "std")
    }
    assert [found[name] for name in ("fit", "interpolation", "antialias")] == ["crop", "bilinear", "true"]


def test_the_file_names_no_file_of_this_machine(exported):
    content = exported.read_bytes()
    assert str(Path(command.__file__).parents[1]).encode() not in content
    assert b"site-packages" not in content


def test_a_pt2_file_classifies_in_plain_torch(checkpoint, images, pt2_file, tmp_path):
    inputs, logits = by_torchvision(checkpoint, images)
    expected = logits.softmax(1)
    torch.save(inputs, tmp_path / "inputs.pt")
    script = """
import sys, json, torch
sys.modules["project"] = sys.modules["lightning"] = None  # importing them would raise
program = torch.export.load(sys.argv[1]).module()
print(json.dumps(program(torch.load("inputs.pt")).numpy().tolist()))
"""
    python = [sys.executable, "-I", "-c", script, pt2_file]
    found = subprocess.run(python, cwd=tmp_path, capture_output=True, check=True)
    torch.testing.assert_close(torch.tensor(json.loads(found.stdout)).double(), expected, rtol=0, atol=1e-5)


def test_it_says_what_it_compared_on(checkpoint, pt2_file, images, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "write_pt2", lambda _, path: shutil.copy(pt2_file, path))
    run(checkpoint, tmp_path / "given.pt2", f"--images={images}")
    assert f"8 images in {images}" in (printed := capsys.readouterr()).out
    assert "changed labels        0 of 8" in printed.out
    assert "…" in printed.err  # progress
    run(checkpoint, tmp_path / "own.pt2")
    assert "26 images of the checkpoint's test set" in capsys.readouterr().out
    alone = torch.load(checkpoint, weights_only=True)
    alone[ABOUT]["data"] = None
    torch.save(alone, tmp_path / "alone.ckpt")
    run(tmp_path / "alone.ckpt", tmp_path / "alone.pt2")
    assert "32 generated images, as the checkpoint's are not at hand" in capsys.readouterr().out


def tampering(write: Any) -> Any:
    """Writes the file of a network with one weight that is not the checkpoint's."""

    def write_tampered(model: ImageClassifier, path: Path) -> None:
        tampered = deepcopy(model)
        tampered.network.get_submodule("fc").bias.data[0] += 0.01  # type: ignore[index, operator]
        write(tampered, path)

    return write_tampered


def failing(_: Any) -> Any:
    """Writes a part of a file."""

    def write_in_part(model: ImageClassifier, path: Path) -> None:
        path.write_bytes(b"part")
        raise OSError(28, "No space left on device")

    return write_in_part


@pytest.mark.parametrize("breaking", [tampering, failing])
@pytest.mark.parametrize("before", [None, b"before"])
def test_a_file_that_is_not_the_checkpoint_is_not_left(checkpoint, tmp_path, monkeypatch, breaking, before):
    monkeypatch.setattr(command, "write_pt2", breaking(write_pt2))
    output = tmp_path / "odd.pt2"
    if before is not None:
        output.write_bytes(before)
    with pytest.raises(UserError, match=r"probabilities differ by up to|No space left on device"):
        run(checkpoint, output, "--overwrite")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == ([("odd.pt2", before)] if before else [])


def test_a_file_that_is_there_is_kept_unless_it_may_be_replaced(
    checkpoint, pt2_file, images, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "write_pt2", lambda _, path: shutil.copy(pt2_file, path))
    output = tmp_path / "odd.pt2"
    output.write_bytes(b"before")
    assert "is there already" in one_line(lambda: run(checkpoint, output, f"--images={images}"), capsys)
    assert output.read_bytes() == b"before"
    run(checkpoint, output, f"--images={images}", "--overwrite")
    assert load_pt2(output)(torch.zeros(3, 3, 32, 32, dtype=torch.uint8)).shape == (3, len(NAMES))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--output=model.bin"], r"--output must end in \.onnx or \.pt2, got 'model\.bin'"),
        (["--output=nowhere/model.onnx"], "there is no folder 'nowhere'"),
        (["--output=folder.onnx"], r"'folder\.onnx' is a folder"),
        (["--output=model.onnx", "--images=nowhere"], "--images: there is no folder 'nowhere'"),
        (["--output=model.pt2", "--images=folder.onnx"], r"'folder\.onnx' has no images"),
        (["--output=model.pt2", "--quantize=int8"], r"--quantize int8 is for files that end in \.onnx"),
        (["--output=model.onnx", "--quantize=int4"], "--quantize: expected"),
        (["--output=model.onnx", "--ckpt_path=nowhere.ckpt"], r"there is no file 'nowhere\.ckpt'"),
        (["--output=model.onnx", "--ckpt_path=cut.ckpt"], r"'cut\.ckpt' is damaged"),
        ([], "--output is required"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(checkpoint, workplace, capsys, args, expected):
    Path("folder.onnx").mkdir()
    Path("cut.ckpt").write_bytes(checkpoint.read_bytes()[:1000])
    before = sorted(workplace.rglob("*"))
    text = one_line(lambda: export(parse([f"--ckpt_path={checkpoint}", *args])), capsys)
    assert re.search(expected, text)
    assert sorted(workplace.rglob("*")) == before


def test_the_checkpoint_needs_no_option_before_it(capsys):
    for args in (["best.ckpt", "--output=m.pt2"], ["--output", "m.pt2", "--overwrite", "best.ckpt"]):
        assert parse(args).ckpt_path == "best.ckpt"
    for checkpoints in ([], ["one.ckpt", "--ckpt_path=other.ckpt"]):
        assert "name one checkpoint" in one_line(lambda given=checkpoints: parse(["--output=m.pt2", *given]), capsys)


def test_what_is_not_installed_is_named(checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("project.deploy.formats.find_spec", lambda name: None if name == "onnxscript" else name)
    text = one_line(lambda: run(checkpoint, tmp_path / "odd.onnx"), capsys)
    assert "pip install onnxscript" in text


def test_int8_quantizes_each_channel_and_keeps_labels(tiny_run, tmp_path, capsys):
    checkpoint, output = tiny_run / "checkpoints" / "best.ckpt", tmp_path / "int8.onnx"
    run(checkpoint, output, "--quantize=int8")
    printed = capsys.readouterr().out
    measured = json.loads((tiny_run / "metrics.json").read_text())["test"]
    (accuracy,) = [line.split() for line in printed.splitlines() if line.split()[:1] == ["accuracy"]]
    assert accuracy[2] == f"({measured['correct']}/{measured['total']})"  # before
    assert {"size", "one", "in"} <= {line.split()[0] for line in printed.splitlines() if line}
    graph = onnx.load(output).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    assert len(convolutions) == 8  # of a ResNet-9
    for convolution in convolutions:
        weights, scale = (arrays[name] for name in made_by[convolution.input[1]].input[:2])
        assert weights.dtype == np.int8
        assert scale.shape == weights.shape[:1]
        assert made_by[convolution.input[0]].op_type == "DequantizeLinear"
        # of 8 bits, sums of products overflow where a processor adds them in 16
        assert np.abs(weights.astype(int)).max() <= 64
    metadata = {entry.key: entry.value for entry in onnx.load(output).metadata_props}
    assert len(json.loads(metadata["class_names"])) == 8


def test_int8_that_changes_many_labels_is_refused(checkpoint, onnx_file, tmp_path, monkeypatch):
    def collapse(source: Path, target: Path, images: torch.Tensor) -> None:
        model = onnx.load(source)
        for tensor in model.graph.initializer:
            if "fc." in tensor.name:
                values = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(-values, tensor.name))
        onnx.save(model, target)

    monkeypatch.setattr(command, "write_onnx", lambda _, path: shutil.copy(onnx_file, path))
    monkeypatch.setattr(command, "quantize_to_int8", collapse)
    with pytest.raises(UserError, match=r"int8 changes the label of \d+ of 26 images, more than one in ten"):
        run(checkpoint, tmp_path / "int8.onnx", "--quantize=int8")
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])
    assert stop.value.code == 0
    assert "--output mine.onnx" in capsys.readouterr().out
