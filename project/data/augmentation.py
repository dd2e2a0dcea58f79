"""Augmentation of whole batches on the device, of any channels and bits, by random numbers that are a hash of (seed, epoch, index).

Each kind draws for a purpose of its own, so that kinds are independent; for one that you add, take any number from 1000.
"""

from typing import Literal

import torch
from torch import Tensor

from project.engine.loading.batch import ImageBatch
from project.engine.randomness import Purpose, uniform

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
    """Moves each image on both axes, by ``where`` (N, 2) in [0, 1), and mirrors its edge into the gap.

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

    It is centred at ``where`` (N, 2) in [0, 1), vertically and horizontally; at an edge a part of it falls outside.
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
    """Shifts, flips and cuts out, as :class:`project.data.module.ImageDataModule` describes its options.

    The covered square has the colour ``fill``, (channels,). ``flipping`` may be ``alternating``, as in section 3.6 of
    Jordan, 2024, https://arxiv.org/abs/2404.00498.
    """
    images = batch.images
    if padding:
        images = shift(images, uniform(seed, epoch, batch.indices, Purpose.SHIFT, 2), padding)
    if flipping == "alternating":
        chance = uniform(seed, 0, batch.indices, Purpose.FLIP)
        images = flip(
            images, chance if epoch % 2 == 0 else (chance < 0.5).to(chance)
        )  # mirrors the other half
    elif flipping:
        images = flip(images, uniform(seed, epoch, batch.indices, Purpose.FLIP))
    if cutout_size:
        images = cutout(
            images, uniform(seed, epoch, batch.indices, Purpose.CUTOUT, 2), cutout_size, fill
        )
    return batch._replace(images=images)
