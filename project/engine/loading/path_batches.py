"""Batches of image files that are named, prepared as evaluation prepares them."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from ..errors import LocalError, UnreadableFileError
from ..preprocessing import Preprocessing
from .decode import reason
from .files import prepare
from .workers import image_loader


class PathBatch(NamedTuple):
    """A batch of image files: a path is None where it only fills the batch up, an error None where the file is read."""

    images: Tensor  # uint8 (N, 3, crop, crop), black where a file cannot be read
    paths: list[str | None]
    errors: list[str | None]


class PathDataset:
    """Image files, read without failing."""

    def __init__(self, paths: Sequence[str | None], preprocessing: Preprocessing) -> None:
        self._paths, self._preprocessing = paths, preprocessing

    def __len__(self) -> int:
        return len(self._paths)

    def __getitems__(self, indices: Sequence[int]) -> PathBatch:
        crop = self._preprocessing["crop"]
        images = torch.zeros((len(indices), 3, crop, crop), dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        paths = [self._paths[index] for index in indices]
        errors: list[str | None] = [None] * len(paths)
        for position, path in enumerate(paths):
            if path is None:
                continue
            try:
                if os.path.exists(path) and not os.path.isfile(path):  # opening a pipe would wait
                    raise UnreadableFileError("not a file")
                images[position] = prepare(path, self._preprocessing)
            except LocalError as error:
                # other errors of the system, such as too many open files, are not about this file
                if not isinstance(error, UnreadableFileError) and not isinstance(error.__cause__, PermissionError):
                    raise
                errors[position] = reason(error)
        return PathBatch(images, paths, errors)


def path_loader(
    paths: Sequence[str | None], preprocessing: Preprocessing, batch_size: int, workers: int, devices: int
) -> DataLoader[Any]:
    """Loads files in their order; ``devices`` processes of this machine do so at once, each with its own workers."""
    batch_bytes = batch_size * 3 * preprocessing["crop"] ** 2
    dataset, pinned = PathDataset(paths, preprocessing), torch.cuda.is_available()
    return image_loader(dataset, batch_size, workers, 2, batch_bytes, devices, pin_memory=pinned)
