"""From the bytes of images to the numbers that a network takes."""

from collections.abc import Sequence

import torch
from torch import Tensor


def to_255_scale(values: Sequence[float]) -> Tensor:
    """A mean or deviation of each channel, from 0 to 1, as :func:`normalize` takes it: in the 255 levels of bytes.

    Returns:
        float32 (1, channels, 1, 1).
    """
    return 255 * torch.tensor(values).view(1, -1, 1, 1)


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Converts to the type of the mean, subtracts it and divides by the deviation.

    Args:
        images: uint8 or float (N, channels, height, width).
        mean: float (1, channels, 1, 1), in levels of the images.
        std: As the mean.

    Returns:
        (N, channels, height, width), in the images' memory format.
    """
    x = images.to(mean.dtype, copy=True)
    channels_last = x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    # a CPU's vector units want whole rows, and one pass over memory takes half as long as two
    row = (1, x.shape[1], 1, x.shape[3])
    scale, shift = (values.expand(row).contiguous(memory_format=layout) for values in (1 / std, -mean / std))
    return torch.addcmul(shift, x, scale, out=x)
