"""Predictions of files and splits are those of torchvision and the network; Grad-CAM is its formula's."""

from collections.abc import Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models.resnet import resnet18
from torchvision.models.squeezenet import squeezenet1_1
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

from project.analysis.evaluation import evaluate_split
from project.analysis.gradcam import grad_cam
from project.data import FolderDataModule
from project.engine.preprocessing import Fit, Preprocessing
from project.model import ImageClassifier
from tests.conftest import cases, draw_image, make_folder, opened
from tests.distributed.job import classifier
from tests.engine.loading.image_files import prepared
from tests.model.test_classifier import PREPROCESSING, make_images

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types
IMAGES = make_images(2, side=64)


def by_torchvision(
    model: ImageClassifier, paths: Sequence[str | Path], flips: bool = False
) -> tuple[Tensor, Tensor]:
    """Files as input, by torchvision's transforms, and the logits that the network makes of them in float64."""
    about: Preprocessing = model.preprocessing
    images = torch.stack([prepared(Image.open(path), about) for path in paths])
    normalize = v2.Compose(
        [v2.ToDtype(torch.float64, scale=True), v2.Normalize(about["mean"], about["std"])]
    )
    network = deepcopy(model.network).double().eval()
    with torch.inference_mode():
        logits = [
            network(normalize(view)) for view in ([images, images.flip(3)] if flips else [images])
        ]
    return images, torch.stack(logits).mean(0)


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_predictions_are_those_of_torchvisions_transforms(fit: Fit, tmp_path):
    model, paths = classifier(), [tmp_path / f"{number}.png" for number in range(5)]
    model.preprocessing |= {"resize": 36, "fit": fit}
    for number, path in enumerate(paths):
        draw_image(number / 5, seed=number, size=(50 + 9 * number, 61)).save(path)
    expected = by_torchvision(model, paths)[1].softmax(1)
    for prediction, row in zip(model.predict_files(paths, batch_size=2), expected, strict=True):
        assert list(prediction.probabilities.values()) == pytest.approx(row.tolist(), abs=1e-4)
        assert prediction.label == model.class_names[int(row.argmax())]
        assert prediction.probability == max(prediction.probabilities.values())


class Upside(FolderDataModule):
    """Turns images on their heads before they are sent to the device, and mirrors them there."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch._replace(images=batch.images.flip(2))

    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        return batch._replace(images=batch.images.flip(3))


def images_of(found):
    return torch.stack([found.images.image(index) for index in range(len(found.images))])


def test_images_go_through_the_data_modules_own_hooks(tmp_path, tiny_run):
    make_folder(tmp_path, dict.fromkeys("abcdefgh", 8))
    (model, _), data = (
        opened(tiny_run),
        Upside(str(tmp_path), image_size=32, resize=32, num_workers=0, batch_size=8),
    )
    for split in ("val", "test"):
        found = evaluate_split(model, data, split)
        with torch.no_grad():
            torch.testing.assert_close(
                found.logits, model(images_of(found).flip(2, 3)), rtol=0, atol=1e-4
            )
        assert found.metrics["correct"] == int((found.predicted == found.labels).sum())


def test_each_image_has_its_own_prediction_and_a_broken_one_none(tmp_path, tiny_run, monkeypatch):
    monkeypatch.setattr(ImageClassifier, "probabilities", lambda _, logits: (logits / 4).softmax(1))
    make_folder(tmp_path / "images", dict.fromkeys("abcdefgh", 4))
    model, _ = opened(tiny_run)
    like = {
        "image_size": 32,
        "resize": 32,
        "mean": model.preprocessing["mean"],
        "std": model.preprocessing["std"],
    }
    data = FolderDataModule(str(tmp_path / "images"), **like, num_workers=0, on_bad_image="skip")
    data.setup("test")
    files = {index: tmp_path / "images" / data.splits["test"].name(index) for index in range(8)}
    files[3].write_bytes(b"broken since it was looked at")
    found = evaluate_split(model, data)
    assert [tmp_path / "images" / found.images.name(index) for index in range(8)] == [
        *files.values()
    ]
    assert found.logits.isnan().any(1).tolist() == [index == 3 for index in range(8)]
    assert (int(found.labels[3]), found.metrics["total"]) == (-1, 7)
    del files[3]
    for index, prediction in zip(files, model.predict_files([*files.values()]), strict=True):
        assert model.class_names[found.predicted[index]] == prediction.label
        assert float(found.confidence[index]) == pytest.approx(prediction.probability, abs=1e-6)


def test_validation_takes_the_views_of_the_test_where_that_is_asked_for(tiny_run):
    model, data = opened(tiny_run)
    model.test_time_augmentation = "flip"
    plain, views = (
        evaluate_split(model, data, "val", as_in_use=as_in_use) for as_in_use in (False, True)
    )
    with torch.inference_mode():
        straight, mirrored = model(images_of(views)), model(images_of(views).flip(3))
    torch.testing.assert_close(plain.logits, straight, rtol=0, atol=1e-4)
    torch.testing.assert_close(views.logits, (straight + mirrored) / 2, rtol=0, atol=1e-4)
    assert views.metrics["correct"] == int(((straight + mirrored).argmax(1) == views.labels).sum())


def with_network(network):
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch="resnet9_slim")
    model.network = network
    return model.eval()


def by_formula(model, layer, to_map):
    """Grad-CAM of the predicted class at a layer, one image after the other."""
    cams = []
    for image in IMAGES:
        kept: list[torch.Tensor] = []
        hook = layer.register_forward_hook(lambda _, __, output, kept=kept: kept.append(output))
        logits = model(image[None])
        hook.remove()
        (slopes,) = torch.autograd.grad(logits[0].max(), kept[0])
        features, slopes = to_map(kept[0].detach())[0], to_map(slopes)[0]
        cam = sum(slopes[c].mean() * features[c] for c in range(len(features))).relu()
        cam = nn.functional.interpolate(cam[None, None], IMAGES.shape[2:], mode="bilinear")[0, 0]
        cams.append(cam / cam.max().clamp(min=1e-12))
    return torch.stack(cams)


@cases(
    "build layer to_map",
    (lambda: resnet18(num_classes=3), "layer4", lambda x: x),
    (lambda: squeezenet1_1(num_classes=3), "classifier.2", lambda x: x),
    (
        lambda: VisionTransformer(
            64, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=3
        ),
        "encoder.layers.encoder_layer_1.ln_1",
        lambda x: x[:, 1:].transpose(1, 2).unflatten(2, (4, 4)),
    ),
    (
        lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 2], [7, 7], num_classes=3),
        "permute",
        lambda x: x,
    ),
    ids=["resnet", "squeezenet", "vision transformer", "swin"],
)
def test_grad_cam_is_that_of_the_last_layer_with_places_of_any_network(build, layer, to_map):
    torch.manual_seed(1)
    model = with_network(build())
    for parameter in model.parameters():  # some heads start from zero
        if parameter.abs().max() == 0:
            nn.init.normal_(parameter, std=0.1)
    expected = by_formula(model, model.network.get_submodule(layer), to_map)
    model.network.requires_grad_(False)  # a frozen network is explained, too
    torch.testing.assert_close(grad_cam(model, IMAGES), expected, rtol=1e-3, atol=1e-4)
    assert not any(module._forward_hooks for module in model.network.modules())
