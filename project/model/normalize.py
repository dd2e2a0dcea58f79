"""From the bytes of images to the numbers that a network takes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def to_255_scale(values: Sequence[float]) -> Tensor:
    """Converts a mean or deviation of each channel from 0-1 to the 0-255 scale, float32 (1, channels, 1, 1)."""
    return 255 * torch.tensor(values).view(1, -1, 1, 1)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Converts images to the type of the mean, subtracts it and divides by the deviation.

    Args:
        images: uint8 or float (N, channels, height, width); the result keeps their memory format.
        mean: float (1, channels, 1, 1), on the scale of the images.
        std: As the mean.
    """
    x = images.to(mean.dtype, copy=True)
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    # a CPU's vector units want whole rows, and one pass over memory takes half as long as two
    row = (1, x.shape[1], 1, x.shape[3])
    scale, shift = (values.expand(row).contiguous(memory_format=layout) for values in (1 / std, -mean / std))
    return torch.addcmul(shift, x, scale, out=x)


class Normalization:
    """Normalises by a mean and a deviation of each channel, from 0 to 1, on any device and in any type.

    It is no module: its numbers would be buffers, which a moving average of the model would average too, and round.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = to_255_scale(mean), to_255_scale(std)

    def __call__(self, images: Tensor, like: Tensor) -> Tensor:
        """Normalises images on the 0-255 scale, in the type of another tensor on the same device."""
        if (self._mean.device, self._mean.dtype) != (like.device, like.dtype):
            self._mean, self._std = self._mean.to(like), self._std.to(like)
        return normalize(images, self._mean, self._std)


def resized(images: Tensor, size: int | None) -> Tensor:
    """Resizes square images bilinearly with antialiasing, to float; those of that size stay uint8."""
    if size is None or size == images.shape[-1]:
        return images
    return F.interpolate(images.float(), size=(size, size), mode="bilinear", antialias=True)
