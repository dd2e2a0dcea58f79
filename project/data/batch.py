"""What a data loader yields, and how a data set that lies in memory serves it."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class ImageBatch(NamedTuple):
    """Images on their way to the model.

    Attributes:
        images: uint8 (N, 3, height, width), RGB.
        labels: int64 (N,), positions in the list of class names; -1 marks an image that another process counts, or a
            file that cannot be read.
        indices: int64 (N,), positions in the data set.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


class BatchDataset(Protocol):
    """A data set that serves whole batches to a standard ``DataLoader``.

    A key is ``epoch * len(dataset) + index``: what a sample looks like may depend on the epoch, and nothing else
    travels to a worker.
    """

    labels: Tensor

    def __len__(self) -> int:
        """How many samples an epoch has."""

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        """The batch of these samples."""

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (3, height, width)."""

    def name(self, index: int) -> str:
        """What to call one image: a file's path, or where it comes from."""


class WithoutImages:
    """A data set whose images are on the device already: its batches have labels and indices alone.

    Args:
        dataset: The data set.
    """

    def __init__(self, dataset: BatchDataset) -> None:
        self.labels = dataset.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        indices = torch.tensor(keys) % len(self)
        return ImageBatch(torch.empty(len(keys), 0, dtype=torch.uint8), self.labels[indices], indices)


class ArrayDataset:
    """Images of one size that lie in memory.

    Args:
        images: uint8 (N, 3, height, width).
        labels: int64 (N,).
        names: What to call an image, before its number.
    """

    def __init__(self, images: Tensor, labels: Tensor, names: str) -> None:
        self.images, self.labels, self.names = images, labels, names

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        indices = torch.tensor(keys) % len(self)
        return ImageBatch(self.images[indices], self.labels[indices], indices)

    def image(self, index: int) -> Tensor:
        """One image, uint8 (3, height, width)."""
        return self.images[index]

    def name(self, index: int) -> str:
        """The set's name and the image's number in it."""
        return f"{self.names} {index}"
