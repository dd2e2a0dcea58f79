"""Batches of images, the protocol of datasets that serve them, and images in memory."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_convert

from ..exact._loader import fine_uniform
from ..exact._randomness import Purpose
from ..exact._workers import LazyDataLoader, worker_options

Keys = Sequence[tuple[int, int]] | Sequence[int]
"""Samples of a batch: (epoch, index) in training, indices alone in evaluation."""


class ImageBatch(NamedTuple):
    """Images on their way to the model.

    Attributes:
        images: uint8 (N, 3, height, width), RGB; or with the channels and bits that the
            preprocessing says.
        labels: int64 (N,), positions in the list of class names; -1 marks an image without a
            label, or in a prediction a file that cannot be read. Of a multi-label dataset int64 (N,
            classes), 1 for each class that an image has.
        indices: int64 (N,), positions in the dataset; where an epoch takes an image again, plus the
            size of the dataset for each round before, so that its augmentation is another one.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


class BatchDataset(Protocol):
    """A dataset that serves whole batches to a standard ``DataLoader``, see :data:`Keys`."""

    @property
    def labels(self) -> Tensor:
        """int64 (N,)."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: Keys) -> ImageBatch: ...

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (3, height, width)."""

    def name(self, index: int) -> str:
        """The name of an image: a file's path, or the place that it comes from."""


def digests_of(splits: Mapping[str, BatchDataset]) -> dict[str, str]:
    """Hashes the names and labels of each split's samples, in their order."""
    return {
        split: digest_of(map(data.name, range(len(data))), getattr(data, "labels", None))
        for split, data in splits.items()
    }


def digest_of(names: Iterable[str], labels: Tensor | None = None) -> str:
    """Hashes the names and labels of samples, in their order."""
    digest = blake2b("\n".join(names).encode(errors="backslashreplace"), digest_size=16)
    if labels is not None:
        digest.update(labels.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def split_keys(keys: Keys) -> tuple[int, Tensor]:
    """Returns a batch's epoch, 0 for plain indices, and its samples' indices, int64 (N,)."""
    if isinstance(keys[0], int):
        return 0, torch.tensor(keys)
    epochs, indices = zip(*cast(Sequence[tuple[int, int]], keys), strict=True)
    return epochs[0], torch.tensor(indices)


class ArrayDataset:
    """Images of one size that lie in memory.

    Args:
        images: uint8 (N, 3, height, width).
        labels: int64 (N,), or (N, classes); see :class:`ImageBatch`.
        names: The name of an image, before its number.
    """

    def __init__(self, images: Tensor, labels: Tensor, names: str) -> None:
        self.images = images
        self.labels = labels
        self.names = names

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        _, indices = split_keys(keys)
        positions = indices % len(self)
        return ImageBatch(self.images[positions], self.labels[positions], indices)

    def image(self, index: int) -> Tensor:
        """One image, uint8 (3, height, width)."""
        return self.images[index]

    def name(self, index: int) -> str:
        """The set's name and the image's number in it."""
        return f"{self.names} {index}"


def weighted_draw(
    labels: Tensor, counts: Tensor, batch_size: int, balance: float, seed: int, epoch: int
) -> Tensor:
    """Draws the samples of an epoch with replacement, as a function of (seed, epoch).

    Those of small classes come more often: the share of a class with n samples is proportional to
    ``n ** (1 - balance)`` (Kang et al., 2020, https://arxiv.org/abs/1910.09217). A balance of 0
    draws each sample alike often, 1 each class, 0.5 is square-root sampling. An epoch has as many
    whole batches as without balance. ``counts`` are the samples of each class. Returns positions,
    int64 (N,).
    """
    size = len(labels)
    length = size // batch_size * batch_size
    edges = counts.double().pow(-balance)[labels].cumsum(0)
    draws = fine_uniform(seed, epoch, torch.arange(length), Purpose.BALANCE) * edges[-1]
    return torch.searchsorted(edges, draws, right=True).clamp_(max=size - 1)


def repeated_draw(draw: Callable[[int], Tensor], size: int, repeats: int, epoch: int) -> Tensor:
    """Takes each sample of an epoch's order several times in succession, each time as another one.

    An epoch keeps its length, and so has the first of ``size`` samples: repeated augmentation
    (Hoffer et al., 2020, https://arxiv.org/abs/1901.09335), in the order of timm's
    ``RepeatAugSampler``. ``draw`` returns an epoch's samples, int64 (N,) below ``size``, of which
    any may come again. Returns indices that tell the rounds apart, see ``ImageBatch``.
    """
    drawn = draw(epoch).repeat_interleave(repeats)[:size]
    order = drawn.argsort(stable=True)
    counts = drawn.bincount(minlength=size)
    rounds = torch.empty_like(drawn)
    rounds[order] = torch.arange(len(drawn)) - (counts.cumsum(0) - counts)[drawn[order]]
    return drawn + size * rounds


def image_loader(
    dataset: object, batch_size: int, workers: int, prefetch_factor: int, **options: Any
) -> LazyDataLoader:
    """Makes a loader of the batches that a dataset serves, whose workers persist between epochs."""
    return LazyDataLoader(
        cast("Dataset[Any]", dataset),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=default_convert,  # a dataset serves whole batches
        prefetch_factor=prefetch_factor if workers else None,
        **worker_options(workers),
        **options,
    )
