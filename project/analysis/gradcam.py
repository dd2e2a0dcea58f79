"""Grad-CAM (Selvaraju et al., 2017, https://arxiv.org/abs/1610.02391)."""

from math import isqrt

import torch
from matplotlib import colormaps
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

from project.analysis.plots import as_rgb
from project.model import ImageClassifier

_ROUNDING = 1e-3  # of gradients that are equal


def grad_cam(model: ImageClassifier, images: Tensor) -> Tensor:
    """Computes Grad-CAM of the predicted class, in evaluation mode; of several, of the surest.

    It uses the last layer whose output has spatial dimensions with a gradient at more than one
    place: a feature map, or the tokens of image patches. So it needs no layer's name and works with
    any network that averages its tokens. Behind a class token or attention, gradients do not tell
    which tokens decided.

    Args:
        model: On any device.
        images: uint8, or uint16 of 16 bits, (N, channels, height, width), of the crop's size.

    Returns:
        float32 (N, height, width) in [0, 1], on the CPU; all 0 if no feature supports the class.

    Raises:
        ValueError: The network has no such layer.
    """
    outputs, gradients = _layers(model, images)
    # four dimensions with as many rows as there are tokens are attention's heads, no map
    counts = {output.shape[1] for output in outputs if output.ndim == 3}
    for output, gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        # others are of no image, such as a learnt temperature's
        if gradient is None or output.shape[:1] != images.shape[:1] or not gradient.any():
            continue
        if output.ndim == 4 and output.shape[2] not in counts:
            features, slopes = _as_map(output), _as_map(gradient)
        elif output.ndim == 3 and output.shape[1] > 1:
            prefix = _prefix(model.network, gradient)
            features, slopes = _as_grid(output[:, prefix:]), _as_grid(gradient[:, prefix:])
        else:
            continue
        if (slopes.abs().amax((0, 1)) > 0).sum() > 1:
            cam = (slopes.mean((2, 3), keepdim=True) * features).sum(1, keepdim=True).relu()
            cam = F.interpolate(
                cam.float(), images.shape[-2:], mode="bilinear", align_corners=False
            )[:, 0]
            return (cam / cam.amax((1, 2), keepdim=True).clamp(min=1e-12)).cpu()
    raise ValueError("no layer's output has spatial dimensions, so Grad-CAM has nothing to show")


def overlay(image: Tensor, cam: Tensor) -> Tensor:
    """Blends a map of values as colours into an image.

    Args:
        image: uint8 or uint16 (channels, height, width).
        cam: float32 (height, width) in [0, 1], on the CPU.

    Returns:
        uint8 (3, height, width).
    """
    colours = torch.from_numpy(colormaps["viridis"](cam.numpy())[..., :3]).permute(2, 0, 1) * 255
    return ((as_rgb(image) + colours) / 2).round().to(torch.uint8)


def _layers(
    model: ImageClassifier, images: Tensor
) -> tuple[list[Tensor], tuple[Tensor | None, ...]]:
    """Returns the outputs of all layers, in order, and the gradients of the predicted logits."""
    outputs: list[Tensor] = []

    def keep(_module: nn.Module, _args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            outputs.append(output)

    # a frozen network has no gradients unless its input requires one
    def require_gradient(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return args[0].detach().requires_grad_(), *args[1:]

    model.eval()
    images = images.to(model.device)
    classes = _predicted(model, images)
    of_input = model.network.register_forward_pre_hook(require_gradient)
    with torch.enable_grad(), of_input, register_module_forward_hook(keep):
        score = model(images).gather(1, classes[:, None]).sum()
        gradients = torch.autograd.grad(score, outputs, allow_unused=True)
    return [output.detach() for output in outputs], gradients


@torch.no_grad()
def _predicted(model: ImageClassifier, images: Tensor) -> Tensor:
    """Returns each image's class, int64 (N,), which a threshold may have chosen."""
    logits = model.evaluation_logits(images, model.test_time_augmentation)
    probabilities = model.probabilities(logits)
    predicted = model.predicted(probabilities)
    return predicted if model.has_one_class else (predicted + probabilities).argmax(1)


def _as_map(output: Tensor) -> Tensor:
    """Permutes features to (N, channels, rows, columns)."""
    _, second, third, fourth = output.shape
    is_channels_last = second == third != fourth  # as in Swin
    return output.permute(0, 3, 1, 2) if is_channels_last else output


def _as_grid(tokens: Tensor) -> Tensor:
    side = isqrt(tokens.shape[1])
    return tokens.transpose(1, 2).reshape(len(tokens), -1, side, side)


def _prefix(network: nn.Module, gradient: Tensor) -> int:
    """Returns how many tokens, such as registers, are in front of those of image patches.

    Raises an error unless the network averages these: then all have the same gradient.
    """
    declared = {getattr(module, "num_prefix_tokens", None) for module in network.modules()}
    for prefix in (*(count for count in declared if isinstance(count, int)), 0, 1):  # as timm's
        patches = gradient[:, prefix:]
        is_square = isqrt(patches.shape[1]) ** 2 == patches.shape[1]
        difference = (patches - patches.mean(1, keepdim=True)).abs().max()
        if is_square and patches.any() and difference <= _ROUNDING * patches.abs().max():
            return prefix
    raise ValueError(
        "the network does not average its tokens of image patches, as it has a class token or pools"
        " by attention, so Grad-CAM cannot tell where it looks; those of timm average them if they"
        " are trained with --model.arch_args.global_pool avg"
    )
