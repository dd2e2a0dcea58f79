"""Decoded images in a file that all processes of a machine share."""

import errno
import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..exact._errors import UserError
from ._preprocessing import Preprocessing

_VERSION = 3  # another number where the layout of the file changes
_LEFT_FREE = 2**30  # bytes of the disk that are for others
_CHECKED = 2**32  # beside a checksum: that there is one


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
        key = hashlib.sha256(f"{_VERSION} {settings}".encode() + rows.tobytes())
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
    if shutil.disk_usage(path.parent).free < size + _LEFT_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with open(path, "ab") as file:
        if hasattr(os, "posix_fallocate"):  # macOS has no such call
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)
