"""Augmentation of whole batches on the device, of any channels and bits.

Random numbers are a hash of (seed, epoch, index, purpose). Each kind has a purpose of its own, so
that kinds are independent; for one that you add, take any number from 1000.
"""

from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeInt
from torch import Tensor

from project.engine import ImageBatch, ImageDataModule, UserError, uniform

_FLIP = 1
_SHIFT = 2
_CUTOUT = 3

Flip = bool | Literal["alternating"]
"""Rules by which training images are mirrored."""


def flip(images: Tensor, mirrored: Tensor) -> Tensor:
    """Mirrors images left to right where a mask, (N,), says so."""
    if images.device.type == "cpu":  # elsewhere each image would be a command of its own
        parts = zip(torch.split(images, 1), mirrored.tolist(), strict=True)
        return torch.cat([image.flip(-1) if turn else image for image, turn in parts])
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def shift(images: Tensor, where: Tensor, padding: int) -> Tensor:
    """Moves each image by ``where``, (N, 2) in [0, 1), and mirrors its edge into the gap.

    That is padding and random crop in one; the largest offset is ``padding`` pixels.
    """
    count, channels, height, width = images.shape
    offsets = (where * (2 * padding + 1)).long() - padding
    rows = _mirrored(torch.arange(height, device=images.device) + offsets[:, :1], height)
    columns = _mirrored(torch.arange(width, device=images.device) + offsets[:, 1:], width)
    samples = torch.arange(count, device=images.device)[:, None, None, None]
    planes = torch.arange(channels, device=images.device)[:, None, None]
    return images[samples, planes, rows[:, None, :, None], columns[:, None, None, :]]


def _mirrored(positions: Tensor, length: int) -> Tensor:
    inside = positions.abs()
    return (length - 1) - ((length - 1) - inside).abs()


def cutout(images: Tensor, where: Tensor, side: int, fill: Tensor) -> Tensor:
    """Covers a square of each image (DeVries and Taylor, 2017, https://arxiv.org/abs/1708.04552).

    Its centre is ``where``, (N, 2) in [0, 1), from top and left; a part may fall outside the image.
    """
    height, width = images.shape[-2:]
    rows = _covered(where[:, :1], height, side)[:, None, :, None]
    columns = _covered(where[:, 1:], width, side)[:, None, None, :]
    return torch.where(rows & columns, fill[:, None, None], images)


def _covered(centre: Tensor, length: int, side: int) -> Tensor:
    """Returns a mask, (N, length), of ``side`` pixels around ``centre``, (N, 1) in [0, 1)."""
    pixels = torch.arange(length, device=centre.device)
    start = (centre * length).long() - side // 2
    return (pixels >= start) & (pixels < start + side)


class AugmentedDataModule(ImageDataModule):
    """Images with three splits; a subclass has ``class_names``, ``preprocessing`` and ``load``.

    Args:
        flip: Mirrors half of the training images left to right; ``alternating``, each in every
            second epoch.
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
        """Shifts, flips and cuts out, in a training batch of that epoch."""
        images = batch.images
        size = min(images.shape[-2:])  # transforms may have changed it
        if self.crop_padding >= size:
            raise UserError(
                f"--data.crop_padding must be below {size}, the image size, got {self.crop_padding}"
            )
        if self.crop_padding:
            where = uniform(self.seed, epoch, batch.indices, _SHIFT, 2)
            images = shift(images, where, self.crop_padding)
        if self.flip == "alternating":  # section 3.6 of https://arxiv.org/abs/2404.00498
            mirrored = uniform(self.seed, 0, batch.indices, _FLIP)[:, 0] < 0.5
            images = flip(images, mirrored if epoch % 2 == 0 else ~mirrored)
        elif self.flip:
            images = flip(images, uniform(self.seed, epoch, batch.indices, _FLIP)[:, 0] < 0.5)
        if self.cutout:
            where = uniform(self.seed, epoch, batch.indices, _CUTOUT, 2)
            images = cutout(images, where, self.cutout, self.mean_colour(images))
        return batch._replace(images=images)

    def augmentation(self) -> list[str]:
        """Names the options, and the hooks of a subclass, that change images at random."""
        names = ["crop_scale", "train_transforms", "flip", "crop_padding", "cutout"]
        options = [name for name in [*names, "batch_transforms"] if getattr(self, name, None)]
        hooks = [
            name
            for name in ("augment", "transform_batch", "on_after_batch_transfer")
            if getattr(type(self), name) is not getattr(AugmentedDataModule, name)
        ]
        hooks = [f"{type(self).__name__}.{name}" for name in hooks]
        return [*(f"--data.{name}" for name in options), *hooks]
