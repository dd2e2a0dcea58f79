"""Grad-CAM is its formula's, and finds what decides the class, or says that it cannot."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.models.cait import Cait
from timm.models.resnet import BasicBlock, ResNet
from timm.models.swin_transformer import SwinTransformer as TimmSwin
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torchvision.models import SwinTransformer, VisionTransformer, resnet18, squeezenet1_1

from project.analysis.gradcam import grad_cam
from project.model import ImageClassifier
from tests.conftest import cases
from tests.model.test_classifier import PREPROCESSING, make_images

IMAGES = make_images(2, side=64)


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


def model_of(build: Callable[[], nn.Module]) -> ImageClassifier:
    """A model of three classes with a network of fixed weights, none of which are all zero."""
    torch.manual_seed(1)
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch="resnet9_slim").eval()
    model.network = build().eval()
    for parameter in model.parameters():  # some heads start from zero
        if parameter.abs().max() == 0:
            nn.init.normal_(parameter, std=0.1)
    return model


def small_vit(**options: Any) -> nn.Module:
    sizes: dict[str, Any] = {"img_size": 64, "patch_size": 8, "embed_dim": 48}
    sizes |= {"depth": 2, "num_heads": 3}
    return TimmViT(**sizes | options, num_classes=3)


class Scaled(nn.Sequential):
    """Multiplies logits by a number, 1, that a module returns."""

    def forward(self, x):
        logits = self[0](x)
        return logits * self[1](logits, logits + 1)


@cases(
    "build layer to_map",
    (lambda: resnet18(num_classes=3), "layer4", lambda x: x),
    (lambda: Scaled(resnet18(num_classes=3), nn.L1Loss()), "0.layer4", lambda x: x),
    (lambda: squeezenet1_1(num_classes=3), "classifier.2", lambda x: x),
    (
        lambda: small_vit(global_pool="avg", reg_tokens=4, patch_size=32),  # 9 tokens
        "norm",
        lambda x: x[:, 5:].transpose(1, 2).unflatten(2, (2, 2)),
    ),
    (
        lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 2], [7, 7], num_classes=3),
        "permute",
        lambda x: x,
    ),
    ids=["resnet", "scaled resnet", "squeezenet", "vision transformer with registers", "swin"],
)
def test_grad_cam_is_that_of_the_last_layer_with_places_of_any_network(
    build, layer, to_map, monkeypatch
):
    model = model_of(build)
    expected = by_formula(model, model.network.get_submodule(layer), to_map)
    model.network.requires_grad_(False)  # a frozen network is explained, too
    torch.testing.assert_close(grad_cam(model, IMAGES), expected, rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(model, "forward", lambda images: type(model).forward(model, 255 - images))
    torch.testing.assert_close(grad_cam(model, 255 - IMAGES), expected, rtol=1e-3, atol=1e-4)
    assert not any(module._forward_hooks for module in model.network.modules())


def planted(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images of noise with a patch whose colour is their class; labels; masks of the patches."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(96, 160, (count, 3, 64, 64), generator=generator).to(torch.uint8)
    labels = torch.randint(3, (count,), generator=generator)
    places = 8 * torch.randint(7, (count, 2), generator=generator)
    masks = torch.zeros(count, 64, 64)
    for image, label, mask, (y, x) in zip(images, labels, masks, places, strict=True):
        image[:, y : y + 16, x : x + 16] = 255 * (torch.arange(3) == label)[:, None, None]
        mask[y : y + 16, x : x + 16] = 1
    return images, labels, masks


def fit_head(model: ImageClassifier, images: Tensor, labels: Tensor) -> None:
    """Has the features decide the class, by least squares."""
    *_, head = (module for module in model.network.modules() if isinstance(module, nn.Linear))
    kept: list[Tensor] = []
    with head.register_forward_pre_hook(lambda _, args: kept.append(args[0])):
        model(images)
    mean = kept[0].mean(0)
    features, targets = kept[0] - mean, nn.functional.one_hot(labels).float() - 1 / 3
    ridge = 1e-3 * features.square().sum() / features.shape[1] * torch.eye(features.shape[1])
    weight = torch.linalg.solve(features.T @ features + ridge, features.T @ targets)
    head.weight.copy_(weight.T)
    head.bias.copy_(-weight.T @ mean)


AVERAGING: dict[str, Callable[[], nn.Module]] = {
    "resnet": lambda: ResNet(
        BasicBlock,  # type: ignore[arg-type]  # timm's annotation lacks a type[]
        (1, 1, 1, 1),
        num_classes=3,
        channels=(16, 32, 64, 64),
        output_stride=8,
    ),
    "vision transformer": lambda: small_vit(class_token=False, global_pool="avg"),
    "class token beside the average": lambda: small_vit(global_pool="avg"),
    "registers": lambda: small_vit(class_token=False, reg_tokens=4, global_pool="avg"),
    "swin of timm": lambda: TimmSwin(
        64, embed_dim=24, depths=(2, 2), num_heads=(2, 4), window_size=4, num_classes=3
    ),
    "swin": lambda: SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], num_classes=3),
}


@pytest.mark.parametrize("name", AVERAGING)
def test_grad_cam_is_hottest_where_a_planted_patch_decides_the_class(name):
    torch.manual_seed(0)
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch="resnet9_slim").eval()
    model.network = AVERAGING[name]().eval()
    with torch.no_grad():
        fit_head(model, *planted(150, seed=1)[:2])
        images, labels, masks = planted(32, seed=2)
        right = model(images).argmax(1) == labels
    assert right.float().mean() > 0.9
    cams = grad_cam(model, images)[right]
    inside = masks[right].flatten(1).gather(1, cams.flatten(1).argmax(1, keepdim=True))
    # attention in windows moves the hottest place to the next cell, with some random weights
    assert inside.mean() > (0.5 if "swin" in name else 0.95)
    shares = (cams * masks[right]).sum((1, 2)) / cams.sum((1, 2))
    assert shares.mean() > 0.4  # of heat, where a patch is 6% of its image


# of such networks, maps of the last block's tokens are cold where a planted patch decides
@cases(
    "build",
    small_vit,
    lambda: small_vit(reg_tokens=4),
    lambda: small_vit(class_token=False, global_pool="map"),
    lambda: Cait(64, 8, embed_dim=48, depth=2, num_heads=3, num_classes=3),
    lambda: VisionTransformer(64, 8, 2, 3, 48, 96, num_classes=3),
    ids=["class token", "registers", "attention pooling", "class attention", "torchvision"],
)
def test_grad_cam_is_said_to_be_impossible_where_tokens_are_not_averaged(build):
    model = model_of(build)
    with pytest.raises(ValueError, match="does not average its tokens of image patches"):
        grad_cam(model, IMAGES)
