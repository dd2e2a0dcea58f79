"""The scripts of examples/deploy prepare and label images as evaluation does, without this project."""

import base64
import io
import json
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import FileDataset, ImageDataModule, Preprocessing, prepare as prepare_file
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from examples.binary import BinaryClassifier
from project import export
from project.analysis.evaluation import evaluate_split
from project.model import ImageClassifier
from project.model.formats import ProbabilityNetwork, load_onnx, metadata
from tests.conftest import (
    QUIET,
    ROOT,
    SLIM,
    SMALL_FILES,
    TINY_TRAINER,
    call,
    cases,
    checkpoint_of,
    draw_image,
    evaluate,
    fit,
    make_folder,
    one_line,
    read_json,
)
from tests.model.test_classifier import PREPROCESSING
from tests.stubs import NoiseDataModule
from tests.test_export import NAMES, photos as photos, place as place

DEPLOY = ROOT / "examples" / "deploy"


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize(("crop", "resize"), [(32, 37), (33, 37), ([32, 50], [37, 57])])
def test_the_example_prepares_images_as_evaluation_does(tmp_path, fit, crop, resize):
    prepare = runpy.run_path(str(DEPLOY / "prepare.py"))["prepare"]
    about = Preprocessing(resize=resize, crop=crop, fit=fit, mean=[0.4, 0.5, 0.6], std=[0.2] * 3)
    texts = {"interpolation": "bilinear", "fit": fit}
    texts |= {name: json.dumps(about[name]) for name in ("resize", "crop", "mean")}
    turned = Image.Exif()
    turned[0x0112] = 6
    for number, size in enumerate([(40, 32), (32, 40), (37, 37), (500, 333), (91, 20), (64, 47)]):
        image = draw_image(number / 8, seed=number, size=size)
        image = image.convert("L") if number == 2 else image
        image.save(tmp_path / "x.jpg", exif=turned if number % 3 == 0 else Image.Exif())
        expected = prepare_file(tmp_path / "x.jpg", about).numpy()
        pixels = prepare(Image.open(tmp_path / "x.jpg"), texts)
        assert (pixels.dtype, pixels.shape) == (np.uint8, expected.shape)
        assert np.abs(pixels.astype(int) - expected).max() <= 1, (fit, size)


def test_the_example_takes_the_upper_8_of_16_bits_as_evaluation_does(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    grey = np.asarray(draw_image(0.3, 1, (50, 40)).convert("L")).astype(np.uint16) * 257
    Image.fromarray(grey).save(tmp_path / "x.png", exif=turned)
    about = Preprocessing(resize=37, crop=32, mean=[0.4, 0.5, 0.6], std=[0.2] * 3)
    texts = {"interpolation": "bilinear", "fit": "crop", "resize": "37", "crop": "32"}
    example = runpy.run_path(str(DEPLOY / "prepare.py"))
    photo = example["open_photo"]((tmp_path / "x.png").read_bytes())
    expected = prepare_file(tmp_path / "x.png", about).numpy()
    pixels = example["prepare"](photo, texts | {"mean": json.dumps(about["mean"])})
    assert np.abs(pixels.astype(int) - expected).max() <= 1
    assert example["pixels"](photo).shape == (3, 50, 40)
    assert expected.max() < 255  # or clipping would not show


def hostile(exif: bytes, kind: str) -> bytes:
    """A photo with such EXIF data, and in PNG with a text that is long."""
    image, file = draw_image(0.3, 1, (50, 40)), io.BytesIO()
    more = {"pnginfo": PngInfo()} if kind == "PNG" else {}
    if more:
        more["pnginfo"].add_text("comment", "x" * 2_000_000, zip=True)
    image.save(file, kind, exif=exif, **more)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of damage that it gets over
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_the_example_opens_what_evaluation_does(tmp_path, kind):
    example = runpy.run_path(str(DEPLOY / "prepare.py"))
    about = Preprocessing(resize=37, crop=32, mean=[0.4, 0.5, 0.6], std=[0.2] * 3)
    texts = {"interpolation": "bilinear", "fit": "crop", "resize": "37", "crop": "32"}
    texts["mean"] = json.dumps(about["mean"])
    turned = Image.Exif()
    turned[0x0112] = 6
    good = turned.tobytes()
    for exif in (good, good[:-5], b"Exif\0\0II*\0\xff\xff\xff\x7f", b"Exif\0\0none"):
        if kind == "TIFF" and exif is not good:
            continue  # whose own directory has the orientation
        (tmp_path / "image").write_bytes(content := hostile(exif, kind))
        expected = prepare_file(tmp_path / "image", about).numpy()
        pixels = example["prepare"](example["open_photo"](content), texts)
        assert np.abs(pixels.astype(int) - expected).max() <= 1


@pytest.fixture(scope="module")
def beside(place):
    """The folder of exported files, with what the scripts need beside an exported file."""
    shutil.copy(place / "photos" / "3.jpg", place / "photo.jpg")
    shutil.copy(DEPLOY / "prepare.py", place)
    return place


@pytest.mark.parametrize("bits", [9, 12, 16])
def test_the_example_scales_a_pgm_file_as_evaluation_does(tmp_path, bits):
    grey = (np.linspace(0, 2**bits - 1, 48 * 64).reshape(48, 64)).astype(">u2")
    file = tmp_path / "x.pgm"
    file.write_bytes(b"P5 64 48 %d\n" % (2**bits - 1) + grey.tobytes())
    example = runpy.run_path(str(DEPLOY / "prepare.py"))
    photo = FileDataset([file], torch.tensor([0]), PREPROCESSING).photo(0)
    assert np.array_equal(example["pixels"](example["open_photo"](file.read_bytes())), photo)


def test_the_example_enlarges_one_side_as_evaluation_does(tmp_path):
    about = PREPROCESSING | {"fit": "squash", "interpolation": "bicubic"}
    texts = {name: x if isinstance(x, str) else json.dumps(x) for name, x in about.items()}
    image = draw_image(0.3, 1, (20, 150)).convert("1").convert("RGB")
    image.save(tmp_path / "x.png")
    pixels = runpy.run_path(str(DEPLOY / "prepare.py"))["prepare"](image, texts)
    expected = prepare_file(tmp_path / "x.png", about).numpy()
    assert np.abs(pixels.astype(int) - expected).max() <= 2


def test_the_example_refuses_images_of_32_bits_as_evaluation_does(tmp_path):
    Image.fromarray(np.ones((9, 9), np.float32)).save(tmp_path / "x.tif")
    example = runpy.run_path(str(DEPLOY / "prepare.py"))
    with pytest.raises(ValueError, match="32 bits"):
        example["pixels"](example["open_photo"]((tmp_path / "x.tif").read_bytes()))


@pytest.mark.slow
@pytest.mark.parametrize("script", ["onnx_runtime.py", "plain_torch.py"])
def test_a_photo_is_labelled_without_this_project(beside, photos, script):
    guard = 'import sys\nsys.modules["project"] = sys.modules["lightning"] = None  # importing them would raise\n'
    command = [sys.executable, "-c", guard + (DEPLOY / script).read_text()]
    found = subprocess.run(command, cwd=beside, capture_output=True, text=True, check=True)
    label, probability = found.stdout.rstrip("\n").rsplit(" ", 1)
    assert label == NAMES[photos[1][3].argmax()]
    assert float(probability) == pytest.approx(photos[1][3].max().item(), abs=1e-3)


def test_thresholds_choose_the_answer_and_of_several_labels_all():
    answers = runpy.run_path(str(DEPLOY / "prepare.py"))["answers"]
    about = {"has_one_class": "false", "thresholds": '{"a": 0.2, "b": 0.6, "c": 0.1}'}
    assert answers([0.3, 0.5, 0.4], about) == [0, 2]
    assert answers([0.1, 0.5, 0.1], about) == []
    assert answers([0.3, 0.5, 0.4], about | {"has_one_class": "true"}) == [2]
    assert answers([0.6, 0.4, 0.7], {"has_one_class": "false"}) == [0, 2]
    assert answers([0.6, 0.4, 0.7], {"has_one_class": "true"}) == [2]
    of_before = {"has_one_class": "true", "thresholds": '{"benign": 0.0, "malignant": 1.0}'}
    assert answers([0.0, 1.0], of_before) == [1]
    assert answers([0.1, 0.9], of_before) == [0]


def binary(positive: int, bits: int = 8) -> BinaryClassifier:
    """A model of two classes."""
    names = ["benign", "malignant"]
    options: Any = {"preprocessing": {**NoiseDataModule.preprocessing, "bits": bits}}
    return BinaryClassifier(names, names[positive], arch="resnet9_slim", **options)


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("threshold", [0.0, np.float32(0.3).item(), 1.0, 1 + 2**-20])
def test_a_file_of_two_classes_decides_as_the_checkpoint_does_at_the_threshold_too(
    positive, threshold
):
    answers = runpy.run_path(str(DEPLOY / "prepare.py"))["answers"]
    model = binary(positive).eval()
    of_both = [max(1 - threshold, 0.0), threshold][:: 1 if positive else -1]
    model.thresholds = dict(zip(model.class_names, of_both, strict=True))
    about = metadata(ProbabilityNetwork(model), model)
    for share in (0.0, 0.2999, 0.3, 0.3001, 1.0):
        shares = torch.tensor([[1 - share, share]])
        shares = shares if positive else shares.flip(1)
        expected = model.predicted(shares).tolist()
        assert answers(shares[0].numpy(), about) == answers(shares[0].tolist(), about) == expected


@cases("script", "onnx_runtime.py", "plain_torch.py")
@cases(
    "about takes",
    ({"bits": "16", "mean": "[0, 0, 0]"}, "3 channels of 16 bits"),
    ({"mean": "[0, 0]"}, "2 channels of 8 bits"),
)
def test_a_file_of_other_images_is_one_line_without_this_project(script, about, takes, monkeypatch):
    session = SimpleNamespace(get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=about))
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda _: session)
    monkeypatch.setattr(torch.export, "load", lambda _, extra_files: opened(extra_files, about))
    monkeypatch.syspath_prepend(DEPLOY)
    with pytest.raises(SystemExit, match=f"error: takes {takes}; prepare"):
        runpy.run_path(str(DEPLOY / script))


def opened(extra_files: dict[str, str], about: dict[str, str]) -> SimpleNamespace:
    """What torch opens of a file, as far as it is looked at."""
    extra_files.update({name: about[name] for name in extra_files.keys() & about.keys()})
    return SimpleNamespace(module=lambda: None)


def test_checks_are_written_by_a_model_of_ones_own_but_of_16_bits(workplace, monkeypatch, capsys):
    make_folder(workplace, {"photos": 2})
    monkeypatch.syspath_prepend(DEPLOY)
    for bits in (8, 16):
        checkpoint = checkpoint_of(binary(1, bits), workplace / "model.ckpt")
        command = ["write_checks.py", str(checkpoint), "photos", "--import=examples.binary"]
        monkeypatch.setattr(sys, "argv", command)
        if bits == 8:
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(DEPLOY / command[0]), run_name="__main__")
            assert not ended.value.code
    lines = (workplace / "checks.jsonl").read_text().splitlines()
    assert [sum(json.loads(line)["probabilities"]) for line in lines] == pytest.approx([1, 1])
    line = one_line(
        lambda: runpy.run_path(str(DEPLOY / "write_checks.py"), run_name="__main__"), capsys
    )
    assert "must be of RGB images of 8 bits" in line


class Saturated(torch.nn.Module):
    """Is sure of what is bright, and a little of what is red, not blue."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        red = (x[:, 0] - x[:, 2]).mean((1, 2)) - 4  # (0.9 - 0.1) / 0.2, by the means
        logit = self.scale * (20 * x.mean((1, 2, 3)) + red)
        return torch.stack([logit, -logit], 1)


def test_the_checks_that_a_file_carries_tell_of_exchanged_colours():
    model = binary(1).eval()
    model.network = Saturated()
    network = ProbabilityNetwork(model)
    differences = []
    for check in json.loads(metadata(network, model)["checks"]):
        pixels = np.frombuffer(base64.b64decode(check["pixels"]), np.uint8)
        image = torch.from_numpy(pixels.reshape(check["shape"]).copy())
        shares = torch.tensor([check["probabilities"]])
        assert torch.allclose(network(image), shares, atol=1e-5)
        differences.append((network(image.flip(1)) - shares).abs().max().item())
    assert max(differences) > 1e-3  # what check.py accepts


@pytest.mark.slow
def test_the_file_is_checked_by_onnx_runtime_and_numpy_alone(place):
    guard = 'import sys\nsys.modules["project"] = sys.modules["torch"] = None\n'
    command = [sys.executable, "-c", guard + (DEPLOY / "check.py").read_text()]
    found = subprocess.run(command, cwd=place, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("3 of 3 agree")
    about = onnxruntime.InferenceSession(place / "model.onnx").get_modelmeta().custom_metadata_map
    check = json.loads(about["checks"])[0]
    no_number = json.dumps(check | {"probabilities": [float("nan")] * len(NAMES)})
    for lines in ("", no_number):
        (place / "wrong.jsonl").write_text(lines)
        assert subprocess.run([*command, "wrong.jsonl"], cwd=place).returncode == 1, lines


@pytest.mark.slow
def test_the_example_quantizes_to_8_bits(place, photos, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(DEPLOY)
    runpy.run_path(str(DEPLOY / "quantize.py"))
    images, expected = photos
    small = place / "small.onnx"
    shares = load_onnx(small)(images).double()
    torch.testing.assert_close(shares, expected, rtol=0, atol=0.1)
    about = onnxruntime.InferenceSession(small).get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == NAMES
    assert small.stat().st_size < 0.6 * (place / "prepared.onnx").stat().st_size


@pytest.fixture(scope="module")
def from_files(tmp_path_factory):
    """A run on image files of six classes, and its network as a file that takes photos."""
    root = tmp_path_factory.mktemp("files")
    data = make_folder(root / "images", dict.fromkeys("abcdef", 12), size=(50, 43))
    run = ["--data.batch_size=16", "--name=run", f"--trainer.default_root_dir={root}"]
    fit(f"--data={data}", *SMALL_FILES, *SLIM, *TINY_TRAINER, *QUIET, *run)
    (root / "run" / "checkpoints" / "best.ckpt").rename(root / "best.ckpt")
    call(export, root / "best.ckpt", f"--output={root / 'model.onnx'}")
    return root


@pytest.fixture
def measure(monkeypatch):
    """The function of the example that measures an ONNX file."""
    # the drawn flowers have the names of odd.ckpt
    monkeypatch.setattr("project.data.SyntheticFlowersDataModule.class_names", NAMES)
    monkeypatch.syspath_prepend(DEPLOY)
    return runpy.run_path(str(DEPLOY / "evaluate_onnx.py"))["measure"]


def opened_for_test(checkpoint):
    """A checkpoint's model, and its data with the test set loaded."""
    data = ImageDataModule.load_from_checkpoint(checkpoint)
    data.setup("test")
    return ImageClassifier.load_from_checkpoint(checkpoint), data


def require_same_metrics(found, expected):
    assert 0 < expected["accuracy"] < 1
    assert found.keys() >= {"accuracy", "f1", "top5", "loss"}
    assert found.pop("loss") == pytest.approx(expected["loss"], abs=1e-4)
    assert found == {name: expected[name] for name in found}


@pytest.mark.slow
def test_a_file_that_takes_photos_is_measured_as_the_checkpoint_is(
    from_files, measure, monkeypatch, capsys
):
    checkpoint, file = from_files / "best.ckpt", from_files / "model.onnx"
    evaluate(str(checkpoint))
    expected = read_json(checkpoint.with_suffix(".test.metrics.json"))
    metrics, network = measure(file, *opened_for_test(checkpoint))
    require_same_metrics(metrics, expected)
    assert len(network.seconds) == expected["total"]
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["x", str(checkpoint), str(file)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(DEPLOY / "evaluate_onnx.py"), run_name="__main__")
    assert not ended.value.code
    printed = capsys.readouterr().out
    assert printed.count(f"{expected['accuracy']:.2%}") == 2  # the checkpoint's, and the file's
    assert f"model.onnx: {file.stat().st_size / 1e6:.1f} MB" in printed


@pytest.mark.slow
def test_a_file_that_takes_prepared_images_is_measured_as_the_checkpoint_is(place, measure):
    model, data = opened_for_test(place / "odd.ckpt")
    metrics, _ = measure(place / "prepared.onnx", model, data)
    require_same_metrics(metrics, evaluate_split(model, data).metrics)


@pytest.mark.slow
def test_a_file_that_does_not_take_the_test_images_is_refused(place, from_files, measure):
    opened = opened_for_test(place / "odd.ckpt")
    with pytest.raises(UserError, match="has other classes"):
        measure(from_files / "model.onnx", *opened)
    with pytest.raises(UserError, match="export it with --prepared"):  # drawn, not in files
        measure(place / "model.onnx", *opened)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["openvino", "executorch"])
def test_the_examples_convert_for_other_runtimes_and_check_the_result(place, package, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(place)
    if package == "executorch":
        call(export, place / "odd.ckpt", "--output=prepared.pt2", "--prepared")
    runpy.run_path(str(DEPLOY / f"to_{package}.py"))
    assert list(place.glob("model.xml" if package == "openvino" else "model.pte"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the converter names versions that it was not tested with
def test_the_example_converts_for_core_ml_what_computes_the_checks(place, monkeypatch):
    core_ml = pytest.importorskip("coremltools", reason="coremltools is not installed")
    monkeypatch.chdir(place)
    call(export, place / "odd.ckpt", "--output=prepared.pt2", "--prepared")
    # on Linux, what the converter is given can be run, the result cannot
    convert = Mock(wraps=core_ml.convert)
    monkeypatch.setattr(core_ml, "convert", convert)
    runpy.run_path(str(DEPLOY / "to_coreml.py"))
    about = {"checks": ""}
    torch.export.load("prepared.pt2", extra_files=about)
    for check in json.loads(about["checks"]):
        pixels = np.frombuffer(base64.b64decode(check["pixels"]), np.uint8).reshape(check["shape"])
        (found,) = convert.call_args.args[0].module()(torch.from_numpy(pixels.astype(np.float32)))
        np.testing.assert_allclose(found.detach(), check["probabilities"], atol=1e-5)
    spec = core_ml.utils.load_spec("model.mlpackage")
    assert [part.name for part in spec.description.output] == ["classLabel", "classLabel_probs"]
    image = spec.description.input[0].type.imageType
    assert [1, 3, image.height, image.width] == check["shape"]
    assert image.colorSpace == image.RGB
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    (classes,) = block.operations[-1].inputs["classes"].arguments
    values = classes.value.immediateValue.list.values
    assert [value.immediateValue.tensor.strings.values[0] for value in values] == NAMES
