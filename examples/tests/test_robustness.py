"""Commands that measure a checkpoint on test images that are attacked or spoilt."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from PIL import Image, ImageEnhance
from scipy.special import softmax
from torch import Tensor, nn

from examples import corruptions, fgsm
from examples.multilabel import MultilabelClassifier
from project.model import ImageClassifier
from tests.conftest import call, cases, checkpoint_of, opened, read_json
from tests.stubs import NoiseDataModule

pytestmark = pytest.mark.filterwarnings("ignore:.*of TorchVision are deprecated")  # F.jpeg


class Linear(nn.Sequential):
    """A network whose gradient has a formula."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(3 * 12 * 12, num_classes))


def test_an_attack_follows_the_gradient_of_cross_entropy():
    data = NoiseDataModule
    model = ImageClassifier(data.class_names, data.preprocessing, arch=f"{__name__}.Linear").eval()
    batch = data().load()["train"].__getitems__([*range(9)])
    layer: Any = model.network.get_submodule("1")
    mean, std = (np.reshape(data.preprocessing[name], (3, 1, 1)) for name in ("mean", "std"))
    normalised = (batch.images.numpy() / 255 - mean) / std
    weight, bias = (value.detach().double().numpy() for value in (layer.weight, layer.bias))
    errors = softmax(normalised.reshape(9, -1) @ weight.T + bias, 1) - np.eye(3)[batch.labels]
    expected = np.sign(errors @ weight).reshape(batch.images.shape)
    assert (fgsm.uphill(model, batch.images, batch.labels).numpy() == expected).all()


def test_the_attacked_are_classified_as_files_of_them_would_be(tiny_run, capsys):
    call(fgsm, tiny_run / "checkpoints" / "best.ckpt", "--epsilons=[0,6]")
    found = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    model, data = opened(tiny_run)
    batches = [*data.whole_split("test")]
    moved = [
        (batch.images + 6.0 * fgsm.uphill(model, *batch[:2])).clamp(0, 255) for batch in batches
    ]
    correct = correct_images(model, moved, batches)
    test = read_json(tiny_run / "metrics.json")["test"]
    assert found == [f"({test['correct']}/{test['total']})", f"({correct}/{test['total']})"]


def correct_images(model: ImageClassifier, images: list[Tensor], batches: list[Any]) -> int:
    """By probabilities, as `predict` classifies: logits that nearly tie may be equal in them."""
    with torch.inference_mode():
        found = [model(moved.byte()).softmax(1).argmax(1) for moved in images]
    return sum(int((f == b.labels).sum()) for f, b in zip(found, batches, strict=True))


@pytest.mark.parametrize("command", [corruptions, fgsm], ids=lambda command: command.__name__)
def test_images_are_decided_as_the_model_says_such_as_by_a_threshold(
    tiny_run, capsys, monkeypatch, command
):
    monkeypatch.setattr(corruptions, "SEVERITIES", {})  # which take time
    monkeypatch.setattr(ImageClassifier, "predicted", lambda _, shares: 0 * shares.argmax(1))
    call(command, tiny_run / "checkpoints" / "best.ckpt")
    first, *others = read_json(tiny_run / "metrics.json")["test"]["confusion_matrix"]
    accuracy = sum(first) / sum(map(sum, [first, *others]))
    assert f" {accuracy:.2%}" in capsys.readouterr().out.splitlines()[0]


@cases(
    "command kind bits",
    (fgsm, MultilabelClassifier, 8),
    (corruptions, MultilabelClassifier, 8),
    (corruptions, ImageClassifier, 16),
)
def test_other_models_than_can_be_measured_are_refused(tmp_path, command, kind, bits):
    about: Any = NoiseDataModule.preprocessing | {"bits": bits}
    model = kind(NoiseDataModule.class_names, about, arch="resnet9_slim")
    checkpoint = checkpoint_of(model, tmp_path / "model.ckpt")
    with pytest.raises(UserError, match="checkpoint: must be of one class an image"):
        call(command, checkpoint, "--import=examples.multilabel")


def jpeg(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=7)
    return Image.open(file)


@pytest.mark.parametrize(
    ("name", "by_pillow"),
    [("jpeg", jpeg), ("brightness", lambda image: ImageEnhance.Brightness(image).enhance(2.0))],
)
def test_images_are_spoilt_as_by_pillow(name, by_pillow):
    images = torch.randint(256, (4, 3, 24, 24), dtype=torch.uint8)
    severity = corruptions.SEVERITIES[name][-1]
    found = corruptions.corrupt(images, name, severity).permute(0, 2, 3, 1).int()
    for image, expected in zip(images.permute(0, 2, 3, 1), found, strict=True):
        spoilt = np.asarray(by_pillow(Image.fromarray(image.numpy()))).astype(int)
        assert np.abs(spoilt - expected.numpy()).mean() < 1


@pytest.mark.slow
def test_the_table_of_corruptions_begins_with_the_test_accuracy_and_has_all_severities(
    tiny_run, capsys
):
    call(corruptions, tiny_run / "checkpoints" / "best.ckpt")
    table = {name: shares for name, *shares in map(str.split, capsys.readouterr().out.splitlines())}
    assert table.pop("none") == [f"{read_json(tiny_run / 'metrics.json')['test']['accuracy']:.2%}"]
    assert {name: len(shares) for name, shares in table.items()} == dict.fromkeys(
        corruptions.SEVERITIES, 5
    )
    model, data = opened(tiny_run)
    batches = [*data.whole_split("test")]
    spoilt = [(2.0 * batch.images).clamp(0, 255) for batch in batches]
    correct = correct_images(model, spoilt, batches)
    assert table["brightness"][-1] == f"{correct / len(data.splits['test']):.2%}"
