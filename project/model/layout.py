"""The memory format that a network computes in, found by trying."""

from typing import Any

import torch
from torch import Tensor, nn

from project.engine.errors import UserError, first_sentence, printable


def settle(
    network: nn.Module, arch: str, num_classes: int, image_size: int, channels_last: bool
) -> torch.memory_format:
    """Tries a network on black images, and puts it into the memory format that it computes in.

    The attempt gives lazy layers their shapes, too. It changes no statistics.

    Args:
        network: The network; its mode stays.
        arch: Its name, for errors.
        num_classes: The logits that each image must get.
        image_size: The height and width of the images in pixels.
        channels_last: Whether to try with channels as the fastest dimension first; not every network takes that.

    Returns:
        The memory format of images that the network takes.

    Raises:
        UserError: The network cannot take such images, or returns anything but logits.
    """
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        for layout in [torch.channels_last] * channels_last + [torch.contiguous_format]:
            logits, failure = _attempt(network, image_size, layout)
            if failure is None:
                break
    finally:
        for module, mode in modes:
            module.training = mode
    if failure is not None:
        raise UserError(
            f"--model.arch: {printable(arch)} cannot take images of {image_size} pixels ({first_sentence(failure)}); choose"
            " another --data.image_size or --model.arch"
        ) from failure
    if not isinstance(logits, Tensor) or logits.shape != (2, num_classes):
        got = f"a shape of {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(
            f"--model.arch: {printable(arch)} must return logits of the shape (2, {num_classes}) for 2 images of"
            f" {num_classes} classes, got {got}"
        )
    return layout


def _attempt(network: nn.Module, image_size: int, layout: torch.memory_format) -> tuple[Any, Exception | None]:
    place = next(network.parameters(), torch.empty(0))
    images = torch.zeros(2, 3, image_size, image_size, device=place.device, dtype=torch.get_default_dtype())
    try:
        with torch.no_grad():
            logits = network(images.contiguous(memory_format=layout))
        for parameter in network.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.to(memory_format=layout)  # contiguous leaves the strides of 1x1 kernels
    except Exception as error:  # a network may fail in any way
        return None, error
    return logits, None
