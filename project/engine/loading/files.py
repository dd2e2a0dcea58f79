"""Datasets of image files: those of training and evaluation, and files that are named."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import LocalError, UnreadableFileError, printable
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
from .paths import PathBlock, Paths
from .workers import image_loader

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
        labels: Integers (N,).
        preprocessing: The steps that fit images to the network's input.
        crop_scale: The smallest and largest share of an image that a random crop keeps; by default
            evaluation's crops.
        seed: Decides the random crops.
        skip: Serves a file that cannot be read as a black image with the label -1, which is an
            error otherwise.
        cache: A folder for decoded images; random crops are then of images scaled down to
            ``resize``.
        facts: For the cache int64 (N, 4): each file's length, time of change, width and height of
            the image.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Tensor,
        preprocessing: Preprocessing,
        crop_scale: tuple[float, float] | None = None,
        seed: int = 0,
        skip: bool = False,
        cache: Path | None = None,
        facts: NDArray[np.int64] | None = None,
    ) -> None:
        self.files = (
            files if isinstance(files, Paths) else PathBlock().add("", map(os.fspath, files))
        )
        self._labels = labels
        self.preprocessing, self.crop = preprocessing, preprocessing["crop"]
        self.crop_scale, self.seed, self.skip = crop_scale, seed, skip
        self.cache = (
            self._open_cache(cache, facts)
            if cache is not None and facts is not None and len(facts)
            else None
        )

    @property
    def labels(self) -> Tensor:
        """int64 (N,), or (N, classes); see :class:`ImageBatch`."""
        return self._labels.long()

    def __len__(self) -> int:
        return len(self.files)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        epoch, indices = split_keys(keys)
        positions = indices % len(self)
        labels = self._labels[positions].long()
        images = empty_images(len(keys), self.preprocessing)
        draws = uniform(self.seed, epoch, indices, Purpose.CROP, 4 * CROP_TRIES).view(
            -1, CROP_TRIES, 4
        )
        for row, position in enumerate(positions.tolist()):
            try:
                images[row] = self._crop(position, draws[row])
            except UnreadableFileError:
                if not self.skip:
                    raise
                images[row], labels[row] = 0, -1
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
            shape = self.cache.shapes[index].tolist()
            small = self.cache.fetch(index, lambda: self._small(index, shape))
            return random_region(small, draws, self.crop_scale, self.preprocessing)
        file = self.files[index]
        if (bands := bands_of(self.preprocessing)) is not None:
            return random_region(
                read_bands(file, bands), draws, self.crop_scale, self.preprocessing
            )
        with open_image(file) as image:
            return random_crop(image, file, draws, self.crop_scale, self.preprocessing)

    def _small(self, index: int, shape: list[int]) -> Tensor:
        file, (height, width) = self.files[index], shape
        with open_image(file) as image:
            (now,) = self._small_shapes(np.array([upright_size(image, file)])).tolist()
            if now != shape:  # for which the cache has no room
                raise UnreadableFileError(
                    f"'{printable(file)}' has changed its size since it was looked at"
                )
            pixels = decode(image, file, (width, height))
        return scaled_region(
            pixels, (0, 0, pixels.shape[2], pixels.shape[1]), (height, width), self.preprocessing
        )

    def _small_shapes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns heights and widths, (N, 2), of images of these widths and heights."""
        scale = np.minimum(1.0, self.preprocessing["resize"] / sizes.min(axis=1, keepdims=True))
        shapes: NDArray[np.int64] = np.maximum(1, np.round(sizes[:, ::-1] * scale)).astype(np.int64)
        return shapes

    def _open_cache(self, folder: Path, facts: NDArray[np.int64]) -> ImageCache:
        if self.crop_scale is None:
            shapes = np.full((len(self), 2), self.crop)
            settings = f"whole {sorted(self.preprocessing.items())}"
        else:
            shapes = self._small_shapes(facts[:, 2:])
            interpolation = self.preprocessing.get("interpolation", "bilinear")
            settings = f"shorter side {self.preprocessing['resize']} {interpolation}"
        return open_cache(folder, self.files, facts[:, :2], shapes, settings)


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
    return means.mean(0).tolist(), [
        value or 1.0 for value in std.tolist()
    ]  # a constant channel is not scaled


class PathBatch(NamedTuple):
    """A batch of image files; a path of None is padding, an error of None means success."""

    images: Tensor  # (N, channels, crop, crop), black where a file cannot be read
    paths: list[str | None]
    errors: list[str | None]


class PathDataset:
    """Image files, read without failing."""

    def __init__(self, paths: Sequence[str | None], preprocessing: Preprocessing) -> None:
        self._paths, self._preprocessing = paths, preprocessing

    def __len__(self) -> int:
        return len(self._paths)

    def __getitems__(self, indices: Sequence[int]) -> PathBatch:
        images = empty_images(len(indices), self._preprocessing).zero_()
        paths = [self._paths[index] for index in indices]
        errors: list[str | None] = [None] * len(paths)
        for position, path in enumerate(paths):
            if path is None:
                continue
            try:
                images[position] = prepare(path, self._preprocessing)
            except LocalError as error:
                # other errors of the system, such as too many open files, are not about this file
                if not isinstance(error, UnreadableFileError) and not isinstance(
                    error.__cause__, PermissionError
                ):
                    raise
                errors[position] = reason(error)
        return PathBatch(images, paths, errors)


def path_loader(
    paths: Sequence[str | None], preprocessing: Preprocessing, batch_size: int, workers: int
) -> DataLoader[Any]:
    """Loads files in their order."""
    dataset = PathDataset(paths, preprocessing)
    return image_loader(dataset, batch_size, workers, 2, pin_memory=torch.cuda.is_available())
