"""The steps that make an image a network's input, as plain data that a checkpoint remembers."""

import functools
from typing import Any, Literal, NotRequired, TypedDict, get_args

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
        fit: ``crop``, the default, cuts the square from the centre of the scaled image. ``pad`` scales the longer side
            to ``crop`` and fills the rest with the mean, as colour, alike on both sides. ``squash`` scales both sides
            to ``crop``, whatever the aspect ratio.
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


def is_preprocessing(found: Any) -> bool:
    """Returns True for a :class:`Preprocessing` with numbers that images can be prepared by; a file may say anything."""
    if not isinstance(found, dict):
        return False
    sides: list[Any] = [found.get("crop"), found.get("resize")]
    statistics: list[Any] = [found.get("mean"), found.get("std")]
    return (
        all(isinstance(side, int) for side in sides)
        and 1 <= sides[0] <= sides[1] <= _LARGEST
        and found.get("fit", "crop") in get_args(Fit)
        and found.get("interpolation", "bilinear") in get_args(Interpolation)
        and all(isinstance(values, list | tuple) for values in statistics)
        and 0 < len(statistics[0]) == len(statistics[1]) <= 3 * (_LARGEST / sides[0]) ** 2
        and (
            len(statistics[0]) == 3
            if "bits" not in found
            else any(found["bits"] is bits for bits in (8, 16))
        )
        and all(
            isinstance(one, int | float) and abs(one) < _GREATEST
            for values in statistics
            for one in values
        )
        and min(statistics[1]) > 0
    )


def bands_of(preprocessing: Preprocessing) -> Bands | None:
    """Returns channels and bits of images that are used as they are stored; None where they become 8-bit RGB."""
    return (len(preprocessing["mean"]), preprocessing["bits"]) if "bits" in preprocessing else None


def empty_images(count: int, preprocessing: Preprocessing) -> Tensor:
    """Allocates input images, uint8 or uint16 (N, channels, crop, crop), in channels-last format."""
    shape = (count, len(preprocessing["mean"]), preprocessing["crop"], preprocessing["crop"])
    dtype = torch.uint16 if preprocessing.get("bits") == 16 else torch.uint8
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


@functools.cache  # as a copy waits for the device
def as_colour(mean: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Converts a mean of each channel, from 0 to 1, to a colour, (channels,), of a type of pixels."""
    return (torch.iinfo(dtype).max * torch.tensor(mean)).round().to(device, dtype)
