"""The steps that make an image a network's input: plain data, and how pixels are fitted by it."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, NotRequired, TypedDict, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

_GREATEST = 1e30  # of a mean or a deviation
_LARGEST = 2**12  # pixels on a side: of larger ones a batch would fill the memory

Fit = Literal["crop", "pad", "squash"]
"""Rules that fit an image to the network's input, see :class:`Preprocessing`."""

Interpolation = Literal["bilinear", "bicubic"]
"""Rules of scaling, always with antialiasing."""

Bands = tuple[int, int]
"""The number of channels and the bits of each, for images that are used as they are stored."""

Size = int | Sequence[int]
"""Pixels of each side of a square, or height and width."""

Box = tuple[int, int, int, int]
"""Left, upper, right and lower edge of a region, in pixels."""


class Preprocessing(TypedDict):
    """The steps that make an image the network's input in evaluation.

    Attributes:
        resize: With ``fit`` of ``crop``, the length in pixels that the image's shorter side is
            scaled to; or a height and width that the scaled image just covers.
        crop: The network's input, in pixels: the side of a square, or height and width.
        fit: ``crop``, the default, cuts the centre of the scaled image. ``pad`` scales the image to
            lie just within ``crop`` and fills the rest with the mean, as colour, alike on both
            sides. ``squash`` scales both sides to ``crop``, whatever the aspect ratio.
        interpolation: ``bilinear``, the default, or ``bicubic``; with antialiasing.
        mean: Subtracted from each channel, on a scale of 0 to 1; there are as many channels.
        std: Divides each channel after that, on the same scale.
        bits: 8 or 16, of images that are used as they are stored; without it, all become 8-bit RGB.
    """

    resize: int | list[int]
    crop: int | list[int]
    fit: NotRequired[Fit]
    interpolation: NotRequired[Interpolation]
    mean: list[float]
    std: list[float]
    bits: NotRequired[int]


def is_preprocessing(value: object) -> bool:
    """Returns True for a usable :class:`Preprocessing`; a file may say anything."""
    if not isinstance(value, dict):
        return False
    crop, resize = (sides_of(value.get(name)) for name in ("crop", "resize"))
    mean, std = (value.get(name) for name in ("mean", "std"))
    return (
        0 < len(crop) == len(resize)
        and all(least <= side for least, side in zip(crop, resize, strict=True))
        and value.get("fit", "crop") in get_args(Fit)
        and value.get("interpolation", "bilinear") in get_args(Interpolation)
        and isinstance(mean, list | tuple)
        and isinstance(std, list | tuple)
        and 0 < len(mean) == len(std) <= 3 * _LARGEST**2 / math.prod(crop)
        and (len(mean) == 3 or "bits" in value)
        and any(value.get("bits", 8) is bits for bits in (8, 16))
        and all(isinstance(x, int | float) and abs(x) < _GREATEST for x in (*mean, *std))
        and min(std) > 0
    )


def sides_of(size: object) -> list[int]:
    """Returns height and width of a :data:`Size`; nothing if it is none, or too large."""
    sides: list[object] = [*size] if isinstance(size, list | tuple) else [size, size]
    whole = [int(side) for side in sides if isinstance(side, int | np.integer)]
    usable = len(whole) == len(sides) == 2 and 1 <= min(whole) <= max(whole) <= _LARGEST
    return whole if usable else []


def bands_of(preprocessing: Preprocessing) -> Bands | None:
    """Returns channels and bits of images that are used as they are stored; None for 8-bit RGB."""
    return (len(preprocessing["mean"]), preprocessing["bits"]) if "bits" in preprocessing else None


def empty_images(count: int, preprocessing: Preprocessing) -> Tensor:
    """Allocates images, uint8 or uint16 (N, channels, *crop), in channels-last format."""
    shape = (count, len(preprocessing["mean"]), *sides_of(preprocessing["crop"]))
    dtype = torch.uint16 if preprocessing.get("bits") == 16 else torch.uint8
    return torch.empty(shape, dtype=dtype, memory_format=torch.channels_last)


@functools.cache  # as a copy waits for the device
def as_colour(mean: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Converts each channel's mean, from 0 to 1, to a colour, (channels,), as pixels store it."""
    return (torch.iinfo(dtype).max * torch.tensor(mean)).round().to(device, dtype)


def fit_image(image: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Fits a whole image, uint8 or uint16 (channels, height, width), as evaluation sees it.

    It is what torchvision's v2 makes of the image, up to rounding: by ``Resize(resize,
    antialias=True)`` and ``CenterCrop(crop)``, or as :func:`fit_region` does. A ``resize`` of two
    numbers is the least size that the scaled image has, as by timm's ``ResizeKeepRatio``.
    """
    if preprocessing.get("fit", "crop") != "crop":
        return fit_region(image, preprocessing)
    height, width = sides_of(preprocessing["crop"])
    shape = _scaled_shape(image.shape[1:], preprocessing["resize"], max)
    # Python rounds halves to even numbers, and so does torchvision
    upper, left = round((shape[0] - height) / 2), round((shape[1] - width) / 2)
    scaled = scale_image(image, shape, preprocessing)
    return scaled[:, upper : upper + height, left : left + width]


def fit_region(region: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Fits a cropped region of an image to the network's input, as training sees it.

    It is what torchvision's v2 makes of the region: by ``Resize(crop, antialias=True)`` of a height
    and width, or with ``pad``, of a square, by ``Resize(None, max_size=crop, antialias=True)`` and
    ``Pad``.
    """
    height, width = shape = _fitted_shape(region.shape[1:], preprocessing)
    scaled = scale_image(region, shape, preprocessing)
    crop = sides_of(preprocessing["crop"])
    if [*shape] == crop:
        return scaled
    colour = as_colour(tuple(preprocessing["mean"]), region.device, region.dtype)
    canvas = colour[:, None, None].repeat(1, *crop)
    upper, left = (crop[0] - height) // 2, (crop[1] - width) // 2
    canvas[:, upper : upper + height, left : left + width] = scaled
    return canvas


def _fitted_shape(shape: tuple[int, ...], preprocessing: Preprocessing) -> tuple[int, int]:
    """Returns the height and width that :func:`fit_region` scales a region of a shape to."""
    if preprocessing.get("fit") == "pad":
        return _scaled_shape(shape, preprocessing["crop"], min)
    height, width = sides_of(preprocessing["crop"])
    return height, width


def _scaled_shape(
    shape: Sequence[int], size: Size, rule: Callable[..., tuple[int, int]]
) -> tuple[int, int]:
    """Scales a height and width by one factor, to cover a size by ``max``, to lie in it by ``min``."""
    pairs = zip(sides_of(size), shape, strict=True)
    target, side = rule(pairs, key=lambda pair: pair[0] / pair[1])
    return max(1, int(target * shape[0] / side)), max(1, int(target * shape[1] / side))


def random_box(
    width: int,
    height: int,
    draws: Tensor,
    scale: tuple[float, float],
    fit: Fit = "crop",
    aspect: float = 1.0,
) -> Box:
    """Chooses the region that Inception-style training crops (Szegedy et al., 2015).

    See https://arxiv.org/abs/1409.4842. It has a random share of the area and an aspect ratio from
    3:4 to 4:3 times ``aspect``, that of the network's input, uniform in its logarithm; with ``pad``
    and ``squash`` these are multiples of the image's own. ``draws`` are float (tries, 4) in [0, 1):
    area, aspect ratio, horizontal and vertical place. The first try that fits is used, or else the
    largest central region that is allowed.
    """
    if fit != "crop" and scale[0] == 1:  # rounding would cut rows off
        return 0, 0, width, height
    usual = aspect if fit == "crop" else width / height
    for area, ratio, x, y in draws.tolist():
        pixels = width * height * (scale[0] + (scale[1] - scale[0]) * area)
        drawn = usual * (3 / 4) ** (1 - 2 * ratio)
        w, h = round((pixels * drawn) ** 0.5), round((pixels / drawn) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, upper, left + w, upper + h
    w = min(width, round(height * usual * 4 / 3))
    h = min(height, round(width / usual * 4 / 3))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def sufficient_size(
    size: tuple[int, int], box: Box, preprocessing: Preprocessing
) -> tuple[int, int]:
    """Returns the smallest width and height to decode an image at, to fit a region of it."""
    left, upper, right, lower = box
    height, width = _fitted_shape((lower - upper, right - left), preprocessing)
    return int(size[0] * width / (right - left)), int(size[1] * height / (lower - upper))


def region_of(image: Tensor, box: Box, size: tuple[int, int]) -> Tensor:
    """Crops a region of an image, whose width and height were ``size``, and may be smaller now."""
    height, width = image.shape[1:]
    left, right = (round(edge * (width / size[0])) for edge in box[::2])
    upper, lower = (round(edge * (height / size[1])) for edge in box[1::2])
    # halves round to even: both edges could be one
    return image[:, upper : max(upper + 1, lower), left : max(left + 1, right)]


def scale_image(image: Tensor, shape: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
    """Scales pixels to a height and width, with antialiasing."""
    # torch's kernel for three interleaved channels is the fastest, but not for a view
    batch = image[None].contiguous(memory_format=torch.channels_last)
    mode = preprocessing.get("interpolation", "bilinear")
    if image.dtype == torch.uint8:
        return interpolate(batch, size=shape, mode=mode, antialias=True)[0]
    # torch scales no uint16
    scaled = interpolate(batch.float(), size=shape, mode=mode, antialias=True)[0]
    return scaled.round().clamp(0, 65535).to(image.dtype)
