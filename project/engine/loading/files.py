"""Datasets of image files: those of training and evaluation, and files that are named."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..errors import UnreadableFileError, printable
from ..preprocessing import Bands, Preprocessing, bands_of, empty_images
from ..randomness import Purpose, uniform
from .batch import ImageBatch, Keys, split_keys
from .cache import ImageCache, open_cache
from .crops import (
    fit_image,
    fit_region,
    random_box,
    random_region,
    reduced_box,
    scaled_region,
    sufficient_size,
)
from .decode import decode, open_image, read_bands, reason, upright_size
from .paths import Paths
from .workers import LazyDataLoader, image_loader

CROP_TRIES = 10
"""The number of regions drawn for an image, of which the first that fits is cropped."""


def prepare(path: str | os.PathLike[str], preprocessing: Preprocessing) -> Tensor:
    """Reads an image file as evaluation sees it, (channels, crop, crop)."""
    name = os.fspath(path)
    if (bands := bands_of(preprocessing)) is not None:
        return fit_image(read_bands(name, bands), preprocessing)
    with open_image(name) as image:
        return fit_image(decode(image, name), preprocessing)


def random_crop(
    image: Image.Image,
    path: str | Path,
    draws: Tensor,
    scale: tuple[float, float],
    preprocessing: Preprocessing,
) -> Tensor:
    """Crops an image at random, decoded no larger than needed, uint8 (3, crop, crop)."""
    size = upright_size(image, path)
    box = random_box(*size, draws, scale, preprocessing.get("fit", "crop"))
    pixels = decode(image, path, sufficient_size(size, box, preprocessing))
    return fit_region(pixels, reduced_box(box, size, pixels), preprocessing)


class FileDataset:
    """Image files, decoded and cropped when a batch asks for them.

    Args:
        files: The image files.
        labels: Integers (N,), or (N, classes); see :class:`ImageBatch`.
        preprocessing: The steps that fit images to the network's input.
        crop_scale: The smallest and largest share of an image that a random crop keeps; by default
            evaluation's crops.
        seed: Decides the random crops.
        skip: Serves a file that cannot be read as a black image with the label -1, which is an
            error otherwise.
        cache: Decoded images, see :func:`cached_images`.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Tensor,
        preprocessing: Preprocessing,
        crop_scale: tuple[float, float] | None = None,
        seed: int = 0,
        skip: bool = False,
        cache: ImageCache | None = None,
    ) -> None:
        self.files = files if isinstance(files, Paths) else Paths.of(map(os.fspath, files))
        self.labels = labels.long()
        self.preprocessing = preprocessing
        self.crop_scale = crop_scale
        self.seed = seed
        self.skip = skip
        self.cache = cache

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        epoch, indices = split_keys(keys)
        positions = indices % len(self)
        labels = self.labels[positions]
        images = empty_images(len(keys), self.preprocessing)
        draws = crop_draws(self.seed, epoch, indices)
        for row, position in enumerate(positions.tolist()):
            try:
                images[row] = self._crop(position, draws[row])
            except UnreadableFileError:
                if not self.skip:
                    raise
                images[row] = 0
                labels[row] = -1
        return ImageBatch(images, labels, indices)

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, (channels, crop, crop)."""
        if self.cache is not None and self.crop_scale is None:
            return self.cache.fetch(index, lambda: prepare(self.files[index], self.preprocessing))
        return prepare(self.files[index], self.preprocessing)

    def name(self, index: int) -> str:
        """The file's class folder and name, fit to print."""
        return printable(Path(*self.files[index].parts[-2:]))

    def _crop(self, index: int, draws: Tensor) -> Tensor:
        if self.crop_scale is None:
            return self.image(index)
        if self.cache is not None:
            image = self.cache.fetch(index, lambda: self._small(index))
        elif (bands := bands_of(self.preprocessing)) is not None:
            image = read_bands(self.files[index], bands)
        else:
            file = self.files[index]
            with open_image(file) as opened:
                return random_crop(opened, file, draws, self.crop_scale, self.preprocessing)
        return random_region(image, draws, self.crop_scale, self.preprocessing)

    def _small(self, index: int) -> Tensor:
        """Reads an image in the size that it has in the cache."""
        file = self.files[index]
        cache = cast(ImageCache, self.cache)
        height, width = cache.shapes[index].tolist()
        with open_image(file) as image:
            pixels = decode(image, file, (width, height))
        whole = (0, 0, pixels.shape[2], pixels.shape[1])
        return scaled_region(pixels, whole, (height, width), self.preprocessing)


def crop_draws(seed: int, epoch: int, indices: Tensor) -> Tensor:
    """Draws the numbers of random crops, float32 (N, tries, 4) in [0, 1)."""
    return uniform(seed, epoch, indices, Purpose.CROP, 4 * CROP_TRIES).view(-1, CROP_TRIES, 4)


def cached_images(
    folder: Path, rows: NDArray[np.void], preprocessing: Preprocessing, is_cropped: bool
) -> ImageCache:
    """Opens a cache of files, whose ``rows`` :func:`..loading.check.check_files` returns.

    If the images ``is_cropped`` at random, they are cached scaled down to ``resize``.
    """
    settings = f"whole {sorted(preprocessing.items())}"
    shapes = np.full((len(rows), 2), preprocessing["crop"])
    if is_cropped:
        sizes = np.stack([rows["height"], rows["width"]], axis=1)
        scale = np.minimum(1.0, preprocessing["resize"] / sizes.min(axis=1, keepdims=True))
        shapes = np.maximum(1, np.round(sizes * scale)).astype(np.int64)
        interpolation = preprocessing.get("interpolation", "bilinear")
        settings = f"shorter side {preprocessing['resize']} {interpolation}"
    return open_cache(folder, rows, shapes, settings)


def mean_and_std(files: Paths, bands: Bands) -> tuple[list[float], list[float]]:
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


def path_loader(
    paths: Sequence[str], preprocessing: Preprocessing, batch_size: int, workers: int
) -> LazyDataLoader:
    """Loads files in their order; files that cannot be read are black and have the label -1."""
    dataset = FileDataset(Paths.of(paths), torch.zeros(len(paths)), preprocessing, skip=True)
    return image_loader(dataset, batch_size, workers, 2, pin_memory=torch.cuda.is_available())


def why_unreadable(path: str, preprocessing: Preprocessing) -> str:
    """Reads a file that could not be read again; returns the reason."""
    try:
        prepare(path, preprocessing)
    except UnreadableFileError as error:
        return reason(error)
    return "it has changed since"
