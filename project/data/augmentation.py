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


def flip(images: Tensor, chance: Tensor) -> Tensor:
    """Mirrors an image left to right where its number, (N, 1), is below one half."""
    mirrored = chance[:, 0] < 0.5
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
    rows = torch.arange(height, device=images.device) - ((where[:, :1] * height).long() - side // 2)
    columns = torch.arange(width, device=images.device) - (
        (where[:, 1:] * width).long() - side // 2
    )
    covered = ((rows >= 0) & (rows < side))[:, None, :, None] & ((columns >= 0) & (columns < side))[
        :, None, None, :
    ]
    return torch.where(covered, fill[:, None, None], images)


def augment(
    batch: ImageBatch,
    seed: int,
    epoch: int,
    flipping: Flip,
    padding: int,
    cutout_size: int,
    fill: Tensor,
) -> ImageBatch:
    """Shifts, flips and cuts out, as :class:`AugmentedDataModule` describes its options.

    The covered square has the colour ``fill``, (channels,). ``flipping`` may be ``alternating``, as
    in section 3.6 of Jordan, 2024, https://arxiv.org/abs/2404.00498.
    """
    images = batch.images
    if padding:
        images = shift(images, uniform(seed, epoch, batch.indices, _SHIFT, 2), padding)
    if flipping == "alternating":
        chance = uniform(seed, 0, batch.indices, _FLIP)
        if epoch % 2 == 1:
            chance = (chance < 0.5).to(chance)  # mirrors the other half
        images = flip(images, chance)
    elif flipping:
        images = flip(images, uniform(seed, epoch, batch.indices, _FLIP))
    if cutout_size:
        images = cutout(images, uniform(seed, epoch, batch.indices, _CUTOUT, 2), cutout_size, fill)
    return batch._replace(images=images)


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
        """Augments a training batch of that epoch."""
        size = min(batch.images.shape[-2:])  # transforms may have changed it
        if self.crop_padding >= size:
            raise UserError(
                f"--data.crop_padding must be below {size}, the image size, got {self.crop_padding}"
            )
        fill = self.mean_colour(batch.images)
        return augment(batch, self.seed, epoch, self.flip, self.crop_padding, self.cutout, fill)

    def augmentation(self) -> list[str]:
        """Names the options, and the hooks of a subclass, that change images at random."""
        options = ("crop_scale", "flip", "crop_padding", "cutout")
        hooks = ("augment", "transform_batch", "on_after_batch_transfer")
        names = [f"--data.{name}" for name in options if getattr(self, name, None)]
        names += [
            f"{type(self).__name__}.{name}"
            for name in hooks
            if getattr(type(self), name) is not getattr(AugmentedDataModule, name)
        ]
        return [*names, *super().augmentation()]
