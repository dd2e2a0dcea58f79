"""Decoded images in a file that all processes of a machine share."""

import contextlib
import errno
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UserError
from .paths import Paths

_LEFT_FREE = 2**30  # bytes of the disk that are for others
_CHECKED = 2**32  # beside a checksum: that there is one


class ImageCache:
    """Decoded images in a memory-mapped file that all processes share.

    In front of the pixels is a checksum for each image, which a process compares when it first
    reads the image. So an image counts as decoded only if all of it is there, whatever a killed
    process, another process that writes the same image, or a power cut has left.
    """

    def __init__(self, path: Path, shapes: NDArray[np.int64]) -> None:
        self.path, self.shapes = path, shapes
        self._starts = np.cumsum(np.concatenate([[8 * len(shapes)], 3 * shapes.prod(axis=1)]))
        self._map: NDArray[np.uint8] | None = None

    def fetch(self, index: int, decode: Callable[[], Tensor]) -> Tensor:
        """Returns an image, uint8 (3, height, width), from ``decode`` on first use."""
        if (
            self._map is None
        ):  # not before the first image, so that each process opens the file itself
            self._map = np.asarray(
                np.memmap(self.path, np.uint8, mode="r+")
            )  # its own class makes slices slow
            self._checksums = self._map[: self._starts[0]].view(np.uint64)
            self._known = np.zeros(len(self.shapes), bool)
        pixels = self._map[self._starts[index] : self._starts[index + 1]].reshape(
            *self.shapes[index], 3
        )
        if not self._known[index]:
            if self._checksums[index] != _CHECKED + zlib.crc32(pixels.data):
                pixels[:] = decode().permute(1, 2, 0).numpy()
                self._checksums[index] = _CHECKED + zlib.crc32(pixels.data)
            self._known[index] = True
        return torch.from_numpy(pixels).permute(2, 0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "shapes": self.shapes, "_starts": self._starts, "_map": None}


def open_cache(
    folder: Path, files: Paths, stamps: NDArray[np.int64], shapes: NDArray[np.int64], settings: str
) -> ImageCache:
    """Makes the file, or finds that of an earlier run with the same images and settings.

    Image files are the same if their stamps, length and time of change, are, and their paths below
    their common folder.
    """
    key = hashlib.sha256(
        f"2 {settings}".encode()
    )  # another number where the layout of the file changes
    places = {
        place: os.path.abspath(place)
        for place in {os.path.dirname(file) for file in files.strings()}
    }
    above = len(os.path.commonpath(places.values()))  # which may be moved
    between = ""
    for file, stamp in zip(files.strings(), stamps, strict=True):
        place, name = os.path.split(file)
        fact = f"{between}{places[place][above:]}\0{name}\0{(*stamp.tolist(),)}"
        key.update(fact.encode("utf-8", "surrogateescape"))
        between = "\0"
    path = folder / f"{key.hexdigest()[:24]}.images"
    size = 8 * len(shapes) + 3 * int(shapes.prod(axis=1).sum())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _allocate(path, size)
    except OSError as error:
        raise UserError(f"--data.cache '{folder}' cannot be written ({error.strerror})") from error
    return ImageCache(path, shapes)


def _allocate(path: Path, size: int) -> None:
    """Reserves the space now: if it ran out later, the system would kill the process."""
    # the file is truncated to its size last; it may use fewer blocks, compressed
    if path.exists() and path.stat().st_size >= size:
        return
    if shutil.disk_usage(path.parent).free < size + _LEFT_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.touch()
    with open(path, "r+b") as file:
        with contextlib.suppress(AttributeError):  # macOS has no such call
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)
