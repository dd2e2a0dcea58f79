"""Predictions of a split are those of the network; Grad-CAM is its formula's."""

import torch
from torch import nn
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
def test_grad_cam_is_that_of_the_last_layer_with_places_of_any_network(
    build, layer, to_map, monkeypatch
):
    torch.manual_seed(1)
    model = ImageClassifier(["a", "b", "c"], PREPROCESSING, arch="resnet9_slim").eval()
    model.network = build().eval()
    for parameter in model.parameters():  # some heads start from zero
        if parameter.abs().max() == 0:
            nn.init.normal_(parameter, std=0.1)
    expected = by_formula(model, model.network.get_submodule(layer), to_map)
    model.network.requires_grad_(False)  # a frozen network is explained, too
    torch.testing.assert_close(grad_cam(model, IMAGES), expected, rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(model, "forward", lambda images: type(model).forward(model, 255 - images))
    torch.testing.assert_close(grad_cam(model, 255 - IMAGES), expected, rtol=1e-3, atol=1e-4)
    assert not any(module._forward_hooks for module in model.network.modules())
