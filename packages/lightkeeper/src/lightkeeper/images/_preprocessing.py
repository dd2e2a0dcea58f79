"""The steps that make an image a network's input, as plain data that a checkpoint remembers."""

import functools
from typing import Literal, NotRequired, TypedDict, get_args

import torch
from torch import Tensor

_GREATEST = 1e30  # of a mean or a deviation
_LARGEST = 2**12  # pixels on a side: of larger ones a batch would fill the memory

Fit = Literal["crop", "pad", "squash"]
"""Rules that fit an image to the network's square input, see :class:`Preprocessing`."""

Interpolation = Literal["bilinear", "bicubic"]
"""Rules of scaling, always with antialiasing."""

Bands = tuple[int, int]
"""The number of channels and the bits of each, for images that are used as they are stored."""


class Preprocessing(TypedDict):
    """The steps that make an image the network's input in evaluation.

    Attributes:
        resize: With ``crop``, the length in pixels that the image's shorter side is scaled to.
        crop: The side in pixels of the network's square input.
        fit: ``crop``, the default, cuts the square from the centre of the scaled image. ``pad``
            scales the longer side to ``crop`` and fills the rest with the mean, as colour, alike on
            both sides. ``squash`` scales both sides to ``crop``, whatever the aspect ratio.
        interpolation: ``bilinear``, the default, or ``bicubic``; with antialiasing.
        mean: Subtracted from each channel, on a scale of 0 to 1; there are as many channels.
        std: Divides each channel after that, on the same scale.
        bits: 8 or 16, of images that are used as they are stored; without it, all become 8-bit RGB.
    """

    resize: int
    crop: int
    fit: NotRequired[Fit]
    interpolation: NotRequired[Interpolation]
    mean: list[float]
    std: list[float]
    bits: NotRequired[int]


def is_preprocessing(value: object) -> bool:
    """Returns True for a usable :class:`Preprocessing`; a file may say anything."""
    if not isinstance(value, dict):
        return False
    crop, resize, mean, std = (value.get(name) for name in ("crop", "resize", "mean", "std"))
    return (
        isinstance(crop, int)
        and isinstance(resize, int)
        and 1 <= crop <= resize <= _LARGEST
        and value.get("fit", "crop") in get_args(Fit)
        and value.get("interpolation", "bilinear") in get_args(Interpolation)
        and isinstance(mean, list | tuple)
        and isinstance(std, list | tuple)
        and 0 < len(mean) == len(std) <= 3 * (_LARGEST / crop) ** 2
        and (len(mean) == 3 or "bits" in value)
        and any(value.get("bits", 8) is bits for bits in (8, 16))
        and all(isinstance(x, int | float) and abs(x) < _GREATEST for x in (*mean, *std))
        and min(std) > 0
    )


def bands_of(preprocessing: Preprocessing) -> Bands | None:
    """Returns channels and bits of images that are used as they are stored; None for 8-bit RGB."""
    return (len(preprocessing["mean"]), preprocessing["bits"]) if "bits" in preprocessing else None


def empty_images(count: int, preprocessing: Preprocessing) -> Tensor:
    """Allocates images, uint8 or uint16 (N, channels, crop, crop), in channels-last format."""
    shape = (count, len(preprocessing["mean"]), preprocessing["crop"], preprocessing["crop"])
    dtype = torch.uint16 if preprocessing.get("bits") == 16 else torch.uint8
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


@functools.cache  # as a copy waits for the device
def as_colour(mean: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Converts each channel's mean, from 0 to 1, to a colour, (channels,), as pixels store it."""
    return (torch.iinfo(dtype).max * torch.tensor(mean)).round().to(device, dtype)
