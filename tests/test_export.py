"""The promises of ``python -m project.export``, and the code of docs/after_training.md."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images._checkpoint import ABOUT
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from project import export
from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from project.model.formats import ProbabilityNetwork, load_onnx, load_pt2, write_onnx
from project.model.resizing import Resizing
from tests.conftest import (
    ROOT,
    call,
    cases,
    classifier,
    draw_image,
    evaluate,
    load,
    make_folder,
    one_line,
    read_json,
)
from tests.test_predict import by_torchvision, prepared

NAMES = ["daisy", 'a "quoted" name', "comma, name", "向日葵", "{}", "line\nend", "null", " "]
TEMPERATURE = 1.7
LOADERS = {".onnx": load_onnx, ".pt2": load_pt2}


def run(checkpoint: Path, output: str | Path, *args: str) -> None:
    call(export, checkpoint, f"--output={output}", *args)


@pytest.fixture(scope="session")  # examples/ has tests of the same files
def place(tiny_run, tmp_path_factory) -> Path:
    """A folder with the page's files and a checkpoint of classes with odd names, exported both ways."""
    folder: Path = tmp_path_factory.mktemp("place")
    (folder / "photos").mkdir()
    for number in range(8):
        image = draw_image(number / 8, seed=number, size=(40 + 7 * number, 90 - 5 * number))
        image.save(folder / "photos" / f"{number}.jpg")
    trained = tiny_run / "checkpoints" / "best.ckpt"
    model = ImageClassifier.load_from_checkpoint(trained)
    _, logits = by_torchvision(model, sorted((folder / "photos").iterdir()))
    content = load(trained)
    content[ABOUT]["class_names"] = content["hyper_parameters"]["class_names"] = NAMES
    for name in ("weight", "bias"):  # probabilities neither all alike nor all 0 and 1
        content["state_dict"][f"network.fc.{name}"] *= 2 * TEMPERATURE / logits.std()
    content[ABOUT]["temperature"] = TEMPERATURE
    torch.save(content, folder / "odd.ckpt")
    for suffix in LOADERS:
        run(folder / "odd.ckpt", folder / f"model{suffix}")
    run(folder / "odd.ckpt", folder / "prepared.onnx", "--prepared")
    return folder


@pytest.fixture(params=LOADERS)
def exported(request, place: Path) -> Path:
    return place / f"model{request.param}"


@pytest.fixture(scope="module")
def photos(place) -> tuple[torch.Tensor, torch.Tensor]:
    """The photos, resized, and the probabilities that the checkpoint's network gives them."""
    model = ImageClassifier.load_from_checkpoint(place / "odd.ckpt")
    images, logits = by_torchvision(model, sorted((place / "photos").iterdir()))
    return images, (logits / TEMPERATURE).softmax(1)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_probabilities_are_those_of_the_checkpoint_in_any_batch(place, photos, size):
    images, expected = photos
    classify = load_onnx(place / "prepared.onnx")
    shares = torch.cat([classify(batch) for batch in images.split(size)])
    assert shares.dtype == torch.float32
    torch.testing.assert_close(shares.double(), expected, rtol=0, atol=1e-5)
    assert ((expected > 0.3) & (expected < 0.7)).any()


def test_a_file_takes_photos_of_any_size(exported, place, photos):
    classify = LOADERS[exported.suffix](exported)
    for path, expected in zip(sorted((place / "photos").iterdir()), photos[1], strict=True):
        photo = pil_to_tensor(Image.open(path)).expand(2, -1, -1, -1)
        for shares in (classify(photo[:1])[0], *classify(photo)):
            torch.testing.assert_close(shares.double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["model.onnx", "prepared.onnx"])
def test_a_file_carries_images_by_which_a_runtime_is_checked(place, name):
    session = onnxruntime.InferenceSession(place / name)
    model = ImageClassifier.load_from_checkpoint(place / "odd.ckpt").eval()
    for check in json.loads(session.get_modelmeta().custom_metadata_map["checks"]):
        pixels = np.frombuffer(base64.b64decode(check["pixels"]), np.uint8)
        images = pixels.reshape(check["shape"])
        resized = torch.from_numpy(images.copy())
        if name == "model.onnx":
            resized = prepared(Image.fromarray(images[0].transpose(1, 2, 0)), model.preprocessing)
            resized = resized[None]
        expected = (model(resized)[0] / TEMPERATURE).softmax(0).tolist()
        assert check["probabilities"] == pytest.approx(expected, abs=1e-4)
        (shares,) = session.run(None, {"images": images})[0]
        assert check["probabilities"] == pytest.approx(shares.tolist(), abs=1e-4)
        assert max(check["probabilities"]) - min(check["probabilities"]) > 0.01


def test_the_file_says_what_it_needs_to_be_used(exported, place):
    about = load(place / "odd.ckpt")[ABOUT]["preprocessing"]
    content = exported.read_bytes()  # which names no file of this machine
    assert str(ROOT).encode() not in content
    assert b"site-packages" not in content
    texts = dict.fromkeys(["class_names", *about, "fit", "interpolation", "antialias"], "")
    if exported.suffix == ".onnx":
        session = onnxruntime.InferenceSession(exported)
        texts = session.get_modelmeta().custom_metadata_map
        puts = [*session.get_inputs(), *session.get_outputs()]
        assert [(put.name, put.type, put.shape) for put in puts] == [
            ("images", "tensor(uint8)", ["batch", 3, "height", "width"]),
            ("probabilities", "tensor(float)", ["batch", len(NAMES)]),
        ]
    else:
        torch.export.load(exported, extra_files=texts)
    assert json.loads(texts["class_names"]) == NAMES
    assert all(json.loads(texts[name]) == about[name] for name in ("resize", "crop", "mean", "std"))
    rules = [texts[name] for name in ("fit", "interpolation", "antialias")]
    assert rules == ["crop", "bilinear", "true"]


def test_a_file_that_is_not_the_checkpoint_is_not_left(place, tmp_path, monkeypatch):
    class Tampered(ProbabilityNetwork):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) + 2e-4

    class Blurred(Resizing):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images).clamp(2, 253)

    (tmp_path / "odd.pt2").write_bytes(b"before")
    for name, cls in (("ProbabilityNetwork", Tampered), ("Resizing", Blurred)):
        with monkeypatch.context() as patch:
            patch.setattr(f"project.model.formats.{name}", cls)
            with pytest.raises(UserError, match="differ by up to"):
                run(place / "odd.ckpt", tmp_path / "odd.pt2", "--overwrite")
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


@cases(
    "args expected",
    (["{}", "--output=model.bin"], r"--output: must end in \.onnx or \.pt2, got 'model\.bin'"),
    (["{}", "--output=nowhere/model.onnx"], "parent directory does not exist"),
    (["{}", "--output=folder.onnx", "--overwrite"], "--output: .* already exists"),
    (["{}", "--output=there.pt2"], r"'there\.pt2' is there already; --overwrite replaces it"),
    (["nowhere.ckpt", "--output=model.onnx"], r"there is no file 'nowhere\.ckpt'"),
    (["cut.ckpt", "--output=model.onnx"], r"'cut\.ckpt' is damaged"),
)
def test_a_mistake_is_one_line(place, workplace, capsys, args, expected):
    Path("folder.onnx").mkdir()
    Path("there.pt2").touch()
    Path("cut.ckpt").write_bytes((place / "odd.ckpt").read_bytes()[:1000])
    before = sorted(workplace.rglob("*"))
    text = one_line(lambda: call(export, *(arg.format(place / "odd.ckpt") for arg in args)), capsys)
    assert re.search(expected, text)
    assert sorted(workplace.rglob("*")) == before


class HardNet(torch.nn.Sequential):
    """A network with each operator that exporters write as HardSigmoid."""

    def __init__(self, num_classes: int) -> None:
        hard = [torch.nn.Hardswish(), torch.nn.Conv2d(16, 16, 1), torch.nn.Hardsigmoid()]
        head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        linear = torch.nn.Linear(16, num_classes)
        super().__init__(torch.nn.Conv2d(3, 16, 5, stride=4), *hard, *head, linear)


def test_hard_sigmoids_are_written_as_operators_that_all_runtimes_know(tmp_path):
    model = classifier(arch=f"{__name__}.HardNet").eval()
    write_onnx(ProbabilityNetwork(model).eval().requires_grad_(False), model, tmp_path / "x.onnx")
    operators = {node.op_type for node in onnx.load(tmp_path / "x.onnx").graph.node}
    assert operators & {"HardSigmoid", "HardSwish", "Clip"} == {"Clip"}
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    expected = model(images).softmax(1)
    torch.testing.assert_close(load_onnx(tmp_path / "x.onnx")(images), expected, rtol=0, atol=5e-6)


def say_of_itself(source: Path, target: Path, texts: dict[str, str]) -> None:
    """Copies an ONNX file with other metadata; what is empty is left out."""
    file = onnx.load(source)
    texts = {prop.key: prop.value for prop in file.metadata_props} | texts
    onnx.helper.set_model_props(file, {name: text for name, text in texts.items() if text})
    onnx.save(file, target)


@pytest.fixture(scope="module")
def measured(place, tmp_path_factory) -> tuple[Path, dict[str, object]]:
    """A checkpoint whose classes are folders of images, exported both ways, and its metrics."""
    folder = tmp_path_factory.mktemp("measured")
    content = load(place / "odd.ckpt")
    content[ABOUT]["class_names"] = content["hyper_parameters"]["class_names"] = [*"abcdefgh"]
    torch.save(content, folder / "letters.ckpt")
    make_folder(folder / "images", dict.fromkeys("abcdefgh", 3), size=(50, 43))
    for kind, source in (("photos", "model"), ("prepared", "prepared")):
        names = {"class_names": json.dumps([*"abcdefgh"])}
        say_of_itself(place / f"{source}.onnx", folder / f"{kind}.onnx", names)
    evaluate(str(folder / "letters.ckpt"), f"--data={folder / 'images'}", "--split=all")
    return folder, read_json(folder / "letters.all.metrics.json")


@pytest.mark.parametrize("kind", ["photos", "prepared"])
def test_a_file_is_measured_as_its_checkpoint(measured, capsys, kind):
    folder, expected = measured
    file = folder / f"{kind}.onnx"
    evaluate(str(file), f"--data={folder / 'images'}", "--split=all")
    found = read_json(folder / f"{kind}.onnx.all.metrics.json")
    assert len({*np.argmax(expected["confusion_matrix"], axis=1)}) > 1, (
        "an exported file must have the classes in their order, which one prediction does not show:"
        " let the network of tiny_run tell these images apart"
    )
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    same = {
        *("accuracy", "correct", "f1", "confusion_matrix", "per_class", "total"),
        *({"top5"} & expected.keys()),  # of more than five classes
    }
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    assert found["megabytes"] == file.stat().st_size / 1e6
    assert 0 < found["latency_ms_p50"] <= found["latency_ms_p95"]
    assert f"{found['megabytes']:.1f} MB; an image takes" in capsys.readouterr().out


@cases(
    "args expected",
    (["photos.onnx"], r"^error: --data: 'photos\.onnx' does not say what images"),
    (["photos.onnx", "--data=images", "--calibrate"], "calibrate that, and export it anew"),
    (["photos.onnx", "--data=Drawn"], r"takes RGB photos from files; export it with --prepared"),
    (["decides.onnx", "--data=images"], "'decides.onnx' decides by thresholds"),
    (["foreign.onnx", "--data=images"], "'foreign.onnx' was not written by"),
    (["model.pt2", "--data=images"], r"'model\.pt2' is no checkpoint"),
    (["images.onnx", "--data=images"], "'images.onnx' cannot be opened as an ONNX file"),
)
def test_what_cannot_be_measured_so_is_one_line(measured, workplace, capsys, args, expected):
    for path in measured[0].iterdir():
        Path(path.name).symlink_to(path)
    for name, texts in (("decides", {"thresholds": "{}"}), ("foreign", {"class_names": ""})):
        say_of_itself(Path("photos.onnx"), Path(f"{name}.onnx"), texts)
    Path("images.onnx").write_bytes(b"no image")
    assert re.search(expected, one_line(lambda: evaluate(*args), capsys))


class Drawn(SyntheticFlowersDataModule):
    """Images of no files."""

    class_names = [*"abcdefgh"]
