"""From the bytes of images to the numbers that a network takes."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


class Normalization:
    """Normalises images by a mean and a deviation of each channel, from 0 to 1, on any device and in any type.

    It is no module: its numbers would be buffers, which a moving average of the model would average too, and round.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = (255 * torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def __call__(self, images: Tensor, like: Tensor) -> Tensor:
        """Normalises images on the 0-255 scale, in the type of another tensor on the same device."""
        if (self._mean.device, self._mean.dtype) != (like.device, like.dtype):
            self._mean, self._std = self._mean.to(like), self._std.to(like)
        x = images.to(like.dtype, copy=True)
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        # a CPU's vector units want whole rows, and one pass over memory takes half as long as two
        row = (1, x.shape[1], 1, x.shape[3])
        factors = (1 / self._std, -self._mean / self._std)
        scale, shift = (values.expand(row).contiguous(memory_format=layout) for values in factors)
        return torch.addcmul(shift, x, scale, out=x)


def resized(images: Tensor, size: int | None) -> Tensor:
    """Resizes square images bilinearly with antialiasing, to float; those of that size stay uint8."""
    if size is None or size == images.shape[-1]:
        return images
    return F.interpolate(images.float(), size=(size, size), mode="bilinear", antialias=True)
