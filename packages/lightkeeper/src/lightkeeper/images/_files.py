"""Datasets of image files: those of training and evaluation, and files that are named."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..exact._errors import UnreadableFileError, printable
from ..exact._randomness import Purpose, uniform
from ._batch import ImageBatch, Keys, split_keys
from ._cache import ImageCache
from ._decode import decode, open_image, read_bands, reason, upright_size
from ._preprocessing import (
    Bands,
    Preprocessing,
    bands_of,
    empty_images,
    fit_image,
    fit_region,
    random_box,
    region_of,
    scale_image,
    sides_of,
    sufficient_size,
)

CROP_TRIES = 10
"""The number of regions drawn for an image, of which the first that fits is cropped."""


Scale = tuple[float, float]
"""The smallest and largest share of an image that a random crop keeps."""

Fitting = tuple[Preprocessing, Tensor | None, Scale | None]
"""The steps for an image, and the draws and scale of a random crop if there is one."""


def prepare(
    image: str | os.PathLike[str] | Tensor,
    preprocessing: Preprocessing,
    draws: Tensor | None = None,
    scale: Scale | None = None,
    content: bytes | None = None,
) -> Tensor:
    """Reads an image as evaluation sees it, or crops it at random by ``draws``.

    The image is a file, or its pixels, uint8 or uint16 (channels, height, width). The ``content``
    of a file is read in place of the file. Returns the image, (channels, *crop).
    """
    if isinstance(image, Tensor):
        return fit_pixels(image, preprocessing, draws, scale)
    name = os.fspath(image)
    if (bands := bands_of(preprocessing)) is not None:
        return fit_pixels(read_bands(name, bands), preprocessing, draws, scale)
    with open_image(name, content) as file:
        return _fit(
            upright_size(file, name),
            lambda least: decode(file, name, least),
            preprocessing,
            draws,
            scale,
        )


def fit_pixels(
    pixels: Tensor, preprocessing: Preprocessing, draws: Tensor | None, scale: Scale | None
) -> Tensor:
    """Fits decoded pixels likewise."""
    _, height, width = pixels.shape
    return _fit((width, height), lambda _: pixels, preprocessing, draws, scale)


def _fit(
    size: tuple[int, int],
    read: Callable[[tuple[int, int] | None], Tensor],
    preprocessing: Preprocessing,
    draws: Tensor | None,
    scale: Scale | None,
) -> Tensor:
    """Fits what ``read`` decodes, which for a random crop need be no larger than it is told."""
    if draws is None or scale is None:
        return fit_image(read(None), preprocessing)
    height, width = sides_of(preprocessing["crop"])
    box = random_box(*size, draws, scale, preprocessing.get("fit", "crop"), width / height)
    pixels = read(sufficient_size(size, box, preprocessing))
    return fit_region(region_of(pixels, box, size), preprocessing)


class FileDataset:
    """Image files, decoded and cropped when a batch asks for them.

    Of a list of paths, each forked loader worker would copy what it reads, as Python counts
    references in the strings themselves: an array holds them, in a few bytes each.

    Args:
        files: The image files.
        labels: Integers (N,), or (N, classes); see :class:`ImageBatch`.
        preprocessing: The steps that fit images to the network's input.
        crop_scale: Crops at random; by default as evaluation does.
        seed: Decides the random crops, and which steps of training each image gets.
        skip: Serves a file that cannot be read as a black image with the label -1, which is an
            error otherwise.
        cache: The decoded images.
        train_preprocessing: Preprocessings for training, which differ in ``interpolation`` alone;
            an image gets one of them at random. By default ``preprocessing``.
    """

    def __init__(
        self,
        files: Iterable[str | Path],
        labels: Tensor,
        preprocessing: Preprocessing,
        crop_scale: Scale | None = None,
        seed: int = 0,
        skip: bool = False,
        cache: ImageCache | None = None,
        train_preprocessing: Sequence[Preprocessing] = (),
    ) -> None:
        names = [os.fsencode(file) for file in files]
        self._prefix = os.path.commonprefix(names) or b""  # noqa: RUF071  # any text in common
        self._names = np.array([name.removeprefix(self._prefix) for name in names])
        self.labels = labels.long()
        self.preprocessing = preprocessing
        self.crop_scale = crop_scale
        self.seed = seed
        self.skip = skip
        self.cache = cache
        self.train_preprocessing = train_preprocessing or [preprocessing]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        epoch, indices = split_keys(keys)
        positions = indices % len(self)
        labels = self.labels[positions]
        images = empty_images(len(keys), self.train_preprocessing[0])
        fittings = draw_fittings(
            self.train_preprocessing, self.crop_scale, self.seed, epoch, indices
        )
        for row, position in enumerate(positions.tolist()):
            try:
                images[row] = self._load(position, *fittings[row])
            except UnreadableFileError:
                if not self.skip:
                    raise
                images[row] = 0
                labels[row] = -1
        return ImageBatch(images, labels, indices)

    def path(self, index: int) -> Path:
        """The path of a file."""
        return Path(os.fsdecode(self._prefix + self._names[index]))

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, (channels, *crop)."""
        return prepare(self.path(index), self.preprocessing)

    def name(self, index: int) -> str:
        """The file's class folder and name, fit to print."""
        return printable(Path(*self.path(index).parts[-2:]))

    def _load(self, index: int, *fitting: *Fitting) -> Tensor:
        file = self.path(index)
        steps, _, scale = fitting
        if self.cache is None:
            return prepare(file, *fitting)
        if scale is None:
            return self.cache.fetch(index, lambda: prepare(file, steps))
        height, width = self.cache.shapes[index].tolist()
        pixels = self.cache.fetch(index, lambda: self._scaled(file, height, width))
        return fit_pixels(pixels, *fitting)

    def _scaled(self, file: Path, height: int, width: int) -> Tensor:
        """Reads a whole image, scaled down."""
        with open_image(file) as image:
            pixels = decode(image, file, (width, height))
        return scale_image(pixels, (height, width), self.train_preprocessing[0])


def draw_fittings(
    steps: Sequence[Preprocessing], scale: Scale | None, seed: int, epoch: int, indices: Tensor
) -> list[Fitting]:
    """Draws one of several steps for each image, and the numbers of its random crop."""
    draws = uniform(seed, epoch, indices, Purpose.CROP, 4 * CROP_TRIES + 1)
    crops = draws[:, :-1].reshape(-1, CROP_TRIES, 4)
    choices = (draws[:, -1] * len(steps)).long().tolist()
    return [(steps[choice], crop, scale) for choice, crop in zip(choices, crops, strict=True)]


def mean_and_std(files: Sequence[str], bands: Bands) -> tuple[list[float], list[float]]:
    """Computes each channel's mean and deviation, from 0 to 1, over at most 1,000 images."""
    moments = []
    for file in files[:: -(-len(files) // 1000)]:
        with suppress(UnreadableFileError):  # the check of all files will tell
            pixels = read_bands(file, bands).flatten(1).double() / (2 ** bands[1] - 1)
            moments.append(torch.stack(torch.var_mean(pixels, 1, correction=0)))
    if not moments:
        read_bands(files[0], bands)  # raises the reason
    variances, means = torch.stack(moments).unbind(1)
    std = (variances.mean(0) + means.var(0, correction=0)).sqrt()
    std[std == 0] = 1.0  # a constant channel is not scaled
    return means.mean(0).tolist(), std.tolist()


def why_unreadable(path: str, preprocessing: Preprocessing) -> str:
    """Reads a file that could not be read again; returns the reason."""
    try:
        prepare(path, preprocessing)
    except UnreadableFileError as error:
        return reason(error)
    return "it has changed since"
