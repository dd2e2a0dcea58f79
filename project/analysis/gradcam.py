"""Grad-CAM (Selvaraju et al., 2017, https://arxiv.org/abs/1610.02391)."""

from math import isqrt

import torch
from matplotlib import colormaps
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from project.analysis.plots import as_rgb
from project.model import ImageClassifier


def grad_cam(model: ImageClassifier, images: Tensor) -> Tensor:
    """Computes Grad-CAM of the predicted class, in evaluation mode.

    It uses the last layer whose output has spatial dimensions (a feature map or the tokens of image
    patches) with a gradient at more than one place. So it needs no layer's name and works with any
    network.

    Args:
        model: On any device.
        images: (N, channels, size, size).

    Returns:
        float (N, size, size) in [0, 1], on the CPU; all 0 if no feature supports the class.
    """
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            outputs.append(output)

    # a frozen network has no gradients unless its input requires one
    def require_gradient(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return args[0].detach().requires_grad_(), *args[1:]

    model.eval()
    of_input = model.network.register_forward_pre_hook(require_gradient)
    with torch.enable_grad(), of_input, register_module_forward_hook(keep):
        score = model(images.to(model.device)).amax(1).sum()
        gradients = torch.autograd.grad(score, outputs, allow_unused=True)
    for output, gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        if gradient is None:
            continue
        features, slopes = _as_map(output.detach()), _as_map(gradient)
        if (slopes.abs().amax((0, 1)) > 0).sum() > 1:
            cam = (slopes.mean((2, 3), keepdim=True) * features).sum(1, keepdim=True).relu()
            cam = F.interpolate(
                cam.float(), images.shape[-2:], mode="bilinear", align_corners=False
            )[:, 0]
            return (cam / cam.amax((1, 2), keepdim=True).clamp(min=1e-12)).cpu()
    raise ValueError("no layer's output has spatial dimensions, so Grad-CAM has nothing to show")


def overlay(image: Tensor, cam: Tensor) -> Tensor:
    """Blends a map of values in [0, 1] as colours into an image of the same size."""
    colours = torch.from_numpy(colormaps["jet"](cam.numpy())[..., :3]).permute(2, 0, 1) * 255
    return ((as_rgb(image) + colours) / 2).round().to(torch.uint8)


def _as_map(output: Tensor) -> Tensor:
    """Reshapes features to (N, channels, rows, columns), 1x1 if they are not spatial."""
    if output.ndim == 4:
        _, second, third, fourth = output.shape
        is_channels_last = second == third != fourth  # as in Swin
        return output.permute(0, 3, 1, 2) if is_channels_last else output
    if output.ndim == 3:  # patch tokens, after others such as the class token
        size = isqrt(output.shape[1])
        patches = output[:, output.shape[1] - size * size :]
        return patches.transpose(1, 2).reshape(len(output), -1, size, size)
    return output.reshape(len(output), -1, 1, 1)
