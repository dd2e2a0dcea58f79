"""Normalising images on the device."""

import torch
from lightkeeper.images import Preprocessing
from torch import Tensor


def image_shape(preprocessing: Preprocessing) -> tuple[int, int, int]:
    """Returns the channels, height and width of a network's input."""
    crop = preprocessing["crop"]
    height, width = (crop, crop) if isinstance(crop, int) else crop
    return len(preprocessing["mean"]), height, width


class Normalization:
    """Normalises images by the mean and standard deviation of each channel.

    Not an nn.Module: its buffers would be averaged by a moving average of the model, and rounded.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.pixels = torch.uint16 if preprocessing.get("bits") == 16 else torch.uint8
        white = torch.iinfo(self.pixels).max
        self.mean = white * torch.tensor(preprocessing["mean"]).view(1, -1, 1, 1)
        self.std = white * torch.tensor(preprocessing["std"]).view(1, -1, 1, 1)

    def __call__(self, images: Tensor, like: Tensor) -> Tensor:
        """Normalises images of integer pixels, on the device and in the dtype of ``like``."""
        # half precision would round 16 bits before the mean is subtracted
        dtype = like.dtype
        if self.pixels == torch.uint16:
            dtype = torch.promote_types(dtype, torch.float32)
        if (self.mean.device, self.mean.dtype) != (like.device, dtype):
            self.mean = self.mean.to(like.device, dtype)
            self.std = self.std.to(like.device, dtype)
        x = images.to(dtype, copy=True)
        channels_last = x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        # rows, not scalars, vectorise on a CPU; one pass over memory takes half as long as two
        row = (1, x.shape[1], 1, x.shape[3])
        factors = (1 / self.std, -self.mean / self.std)
        scale, shift = (values.expand(row).contiguous(memory_format=layout) for values in factors)
        return torch.addcmul(shift, x, scale, out=x).to(like.dtype)
