"""Augmentation of whole batches on the device, of any channels and bits.

Random numbers are a hash of (seed, epoch, index, purpose). Each transform has its own purpose, so
that transforms are independent; for one that you add, take any number from 1000.
"""

from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt
from lightkeeper.exact import UserError, uniform
from lightkeeper.images import ImageBatch, ImageDataModule
from torch import Tensor

_FLIP = 1
_SHIFT = 2
_CUTOUT = 3

Flip = bool | Literal["alternating"]
"""Mirrors training images at random, or each in every second epoch."""


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirrors the images of a mask, bool (N,), left to right."""
    if images.device.type == "cpu":  # on a GPU, each image would be a kernel launch
        pairs = zip(torch.split(images, 1), mirrored.tolist(), strict=True)
        return torch.cat([image.flip(-1) if mirror else image for image, mirror in pairs])
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def shift(images: Tensor, numbers: Tensor, padding: int) -> Tensor:
    """Shifts images by up to ``padding`` pixels, which equals reflection padding and random crop.

    ``numbers``, (N, 2) uniform in [0, 1), decide the vertical and horizontal shift of each image.
    """
    count, channels, height, width = images.shape
    offsets = (numbers * (2 * padding + 1)).long() - padding
    rows = _reflect(torch.arange(height, device=images.device) + offsets[:, :1], height)
    columns = _reflect(torch.arange(width, device=images.device) + offsets[:, 1:], width)
    samples = torch.arange(count, device=images.device)[:, None, None, None]
    planes = torch.arange(channels, device=images.device)[:, None, None]
    return images[samples, planes, rows[:, None, :, None], columns[:, None, None, :]]


def _reflect(positions: Tensor, length: int) -> Tensor:
    return (length - 1) - ((length - 1) - positions.abs()).abs()


def cutout(images: Tensor, centre: Tensor, size: int, fill: Tensor) -> Tensor:
    """Covers a square of each image (DeVries and Taylor, 2017, https://arxiv.org/abs/1708.04552).

    ``centre``, (N, 2) in [0, 1), is measured from the top left; a part may lie outside the image.
    ``size`` is in pixels; ``fill``, (channels,), is the colour of the square, as pixels store it.
    """
    height, width = images.shape[-2:]
    rows = _covered(centre[:, :1], height, size)[:, None, :, None]
    columns = _covered(centre[:, 1:], width, size)[:, None, None, :]
    return torch.where(rows & columns, fill[:, None, None], images)


def _covered(centre: Tensor, length: int, size: int) -> Tensor:
    """Returns a mask, (N, length), of ``size`` pixels around ``centre``, (N, 1) in [0, 1)."""
    pixels = torch.arange(length, device=centre.device)
    start = (centre * length).long() - size // 2
    return (pixels >= start) & (pixels < start + size)


class AugmentedDataModule(ImageDataModule):
    """Base of all data modules; a subclass defines ``class_names``, ``preprocessing`` and ``load``.

    Args:
        flip: Mirrors half of the training images left to right; ``alternating`` mirrors each in
            every second epoch.
        crop_padding: Advanced: The most pixels that a training image is shifted by; its mirrored
            edge fills the gap.
        cutout: Covers a square of that width in each training image; 0 covers nothing.
        kwargs: See ``ImageDataModule``.
    """

    def __init__(
        self,
        flip: Flip = True,
        crop_padding: NonNegativeInt = 0,
        cutout: NonNegativeInt = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.flip, self.crop_padding, self.cutout = flip, crop_padding, cutout

    def augment(self, batch: ImageBatch, epoch: int) -> ImageBatch:
        """Shifts, flips and cuts out images of a training batch, by the epoch's random numbers."""
        images = batch.images
        size = min(images.shape[-2:])  # transforms may have changed it
        for name, pixels in (("crop_padding", self.crop_padding), ("cutout", self.cutout)):
            if pixels >= size:
                raise UserError(f"must be below {size}, the image size, got {pixels}", name)
        if self.crop_padding:
            numbers = uniform(self.seed, epoch, batch.indices, _SHIFT, 2)
            images = shift(images, numbers, self.crop_padding)
        if self.flip:
            alternates = self.flip == "alternating"  # section 3.6 of arxiv.org/abs/2404.00498
            drawn = uniform(self.seed, 0 if alternates else epoch, batch.indices, _FLIP)[:, 0]
            images = flip(images, (drawn < 0.5) ^ (alternates and epoch % 2 == 1))
        if self.cutout:
            centre = uniform(self.seed, epoch, batch.indices, _CUTOUT, 2)
            images = cutout(images, centre, self.cutout, self.mean_colour(images))
        return batch._replace(images=images)
