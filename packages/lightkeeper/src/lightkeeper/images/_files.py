"""Datasets of image files, which decode them or take them from a cache."""

import errno
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..exact._errors import UnreadableFileError, UserError, printable
from ..exact._randomness import Purpose, uniform
from ._batch import ImageBatch, Keys, split_keys
from ._decode import decode, open_image, read_bands, reason, require_shape, upright_size
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

_CACHE_VERSION = 3  # another number where the layout of its file changes
_LEFT_FREE = 2**30  # bytes of the disk that are for others, or as many as a smaller cache takes
_CHECKED = 2**32  # beside a checksum: that there is one

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
    if not isinstance(image, Tensor):
        name = os.fspath(image)
        bands = bands_of(preprocessing)
        if bands is None:
            with open_image(name, content) as file:
                return _fit(
                    upright_size(file),
                    lambda least: decode(file, name, least),
                    preprocessing,
                    draws,
                    scale,
                )
        image = read_bands(name, bands)
    _, height, width = image.shape
    require_shape((height, width))  # of a dataset's image, which may be an empty crop
    return _fit((width, height), lambda _: image, preprocessing, draws, scale)


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


class ImageCache:
    """Decoded images in a memory-mapped file that all processes share.

    In front of the pixels is a checksum for each image, which a process compares when it first
    reads the image. So an image counts as decoded only if all of it is there, whatever a killed
    process, another process that writes the same image, or a power cut has left.

    Args:
        folder: The folder for the file, which an earlier run with the same images and settings may
            have made.
        rows: Rows of ``_check.check_files``. Image files are the same if these are:
            names below the root of the data, lengths and times of change.
        preprocessing: The steps that fit images to the network's input.
        is_cropped: If true, images are cached scaled down to ``resize``, to be cropped at random.

    Attributes:
        shapes: int64 (N, 2), height and width of each image.
    """

    def __init__(
        self, folder: Path, rows: NDArray[np.void], preprocessing: Preprocessing, is_cropped: bool
    ) -> None:
        settings = f"whole {sorted(preprocessing.items())}"
        self.shapes = np.full((len(rows), 2), preprocessing["crop"])
        if is_cropped:
            sizes = np.stack([rows["height"], rows["width"]], axis=1)
            covering = np.divide(preprocessing["resize"], sizes).max(axis=1, keepdims=True)
            scale = np.minimum(1.0, covering)
            self.shapes = np.maximum(1, np.round(sizes * scale)).astype(np.int64)
            interpolation = preprocessing.get("interpolation", "bilinear")
            settings = f"shorter side {preprocessing['resize']} {interpolation}"
        key = hashlib.sha256(f"{_CACHE_VERSION} {settings}".encode() + rows.tobytes())
        self.path = folder / f"{key.hexdigest()[:24]}.images"
        self._starts = np.cumsum(np.concatenate([[8 * len(rows)], 3 * self.shapes.prod(axis=1)]))
        self._known = np.zeros(len(rows), bool)
        self._map: NDArray[np.uint8] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _allocate(self.path, int(self._starts[-1]))
        except OSError as error:
            raise UserError(f"'{folder}' cannot be written ({error.strerror})", "cache") from error

    def fetch(self, index: int, decode: Callable[[], Tensor]) -> Tensor:
        """Returns an image, uint8 (3, height, width), from ``decode`` on first use."""
        if self._map is None:
            # an array of the plain class, whose slices are fast
            self._map = np.asarray(np.memmap(self.path, np.uint8, mode="r+"))
        part = self._map[self._starts[index] : self._starts[index + 1]]
        pixels = part.reshape(*self.shapes[index], 3)
        if not self._known[index]:
            checksums = self._map[: self._starts[0]].view(np.uint64)
            if checksums[index] != _CHECKED + zlib.crc32(pixels.data):
                pixels[:] = decode().permute(1, 2, 0).numpy()
                checksums[index] = _CHECKED + zlib.crc32(pixels.data)
            self._known[index] = True
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def __getstate__(self) -> dict[str, object]:  # each process maps the file itself
        return self.__dict__ | {"_map": None}


def _allocate(path: Path, size: int) -> None:
    """Reserves the space now: if it ran out later, the system would kill the process."""
    # the file is truncated to its size last; it may use fewer blocks, compressed
    if path.exists() and path.stat().st_size >= size:
        return
    room = size + min(size, _LEFT_FREE)
    if shutil.disk_usage(path.parent).free < room:
        needs = f"it needs {room / 1e6:,.1f} MB free, of which it takes {size / 1e6:,.1f}"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needs}")
    with open(path, "ab") as file:
        if hasattr(os, "posix_fallocate"):  # macOS has no such call
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)


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

    def photo(self, index: int) -> Tensor:
        """One image as it is stored, upright, uint8 (3, height, width)."""
        file = self.path(index)
        with open_image(file) as image:
            return decode(image, file)

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
        return prepare(pixels, *fitting)

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
