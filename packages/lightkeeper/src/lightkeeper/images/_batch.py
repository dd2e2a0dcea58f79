"""Batches of images, the datasets that serve them, and a user's transforms of both."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple, Protocol, cast

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.nn import functional as F

from ..exact._errors import LocalError
from ..exact._loader import fine_uniform
from ..exact._randomness import Purpose, derived_seed, held_generators, seed_generators
from ._settings import options_of_library

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


def digest_of(names: Iterable[str], labels: Tensor | None = None) -> str:
    """Hashes the names and labels of samples, in their order."""
    digest = blake2b("\n".join(names).encode(errors="backslashreplace"), digest_size=16)
    if labels is not None:
        digest.update(labels.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def split_keys(keys: Keys) -> tuple[int, Tensor]:
    """Returns a batch's epoch, 0 for plain indices, and its samples' indices, int64 (N,)."""
    if not isinstance(keys[0], tuple):  # of a sampler of one's own perhaps NumPy's or torch's
        return 0, torch.as_tensor(keys, dtype=torch.int64)
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

    The share of a class of n samples is proportional to ``n ** (1 - balance)`` (Kang et al., 2020,
    https://arxiv.org/abs/1910.09217). An epoch has as many whole batches as without balance.

    Args:
        labels: int64 (size,).
        counts: The number of samples of each class, int64 (classes,).
        batch_size: Samples in a batch of all devices together.
        balance: 0 draws all samples equally often, 1 all classes; 0.5 is square-root sampling.
        seed: Decides the draws.
        epoch: Likewise.

    Returns:
        Positions of samples, int64 (N,), N the largest multiple of ``batch_size`` up to ``size``.
    """
    size = len(labels)
    length = size // batch_size * batch_size
    edges = counts.double().pow(-balance)[labels].cumsum(0)
    draws = fine_uniform(seed, epoch, torch.arange(length), Purpose.BALANCE) * edges[-1]
    return torch.searchsorted(edges, draws, right=True).clamp_(max=size - 1)


def repeated_draw(draw: Callable[[int], Tensor], size: int, repeats: int, epoch: int) -> Tensor:
    """Repeats each sample of an epoch's order in succession, for another augmentation each time.

    The epoch keeps its length, so only the first samples of its order occur: repeated augmentation
    (Hoffer et al., 2020, https://arxiv.org/abs/1901.09335), in the order of timm's
    ``RepeatAugSampler``.

    Args:
        draw: Returns an epoch's samples, int64 (N,) in [0, size); a sample may occur repeatedly.
        size: The number of samples in the dataset.
        repeats: How often each sample is taken.
        epoch: The number of the epoch.

    Returns:
        Indices, int64 (N,): sample + size * how often it came before, see ``ImageBatch.indices``.
    """
    drawn = draw(epoch).repeat_interleave(repeats)[:size]
    order = drawn.argsort(stable=True)
    counts = drawn.bincount(minlength=size)
    rounds = torch.empty_like(drawn)
    rounds[order] = torch.arange(len(drawn)) - (counts.cumsum(0) - counts)[drawn[order]]
    return drawn + size * rounds


class TransformedDataset:
    """A training set whose images go through transforms, one at a time, in their order.

    A transform takes an image, uint8 (3, height, width), and returns one. It draws from generators
    that the whole process shares, or that it holds: before each sample, these are seeded by (seed,
    epoch, index), so that no draw depends on what was drawn before.
    """

    def __init__(
        self, dataset: BatchDataset, transforms: Sequence[Callable[..., Tensor]], seed: int
    ) -> None:
        self.dataset = dataset
        self.transforms = transforms
        self.seed = seed
        self.held = held_generators(transforms)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        batch = self.dataset.__getitems__(keys)
        epoch, _ = split_keys(keys)
        images = []
        with isolate_rng(include_cuda=False):
            for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
                seed = derived_seed(Purpose.TRANSFORMS, self.seed, epoch, index)
                seed_generators(seed, held=self.held)
                for transform in self.transforms:
                    with options_of_library(type(transform), "train_transforms"):
                        image = transform(image)
                images.append(image)
        stacked = torch.stack(images).contiguous(memory_format=torch.channels_last)
        kind, expected = (f"{x.dtype} with {x.shape[1]} channels" for x in (stacked, batch.images))
        if kind != expected:
            raise LocalError(
                f"must return {expected}, got {kind}; the model normalises on the device",
                "train_transforms",
            )
        return batch._replace(images=stacked)


class BatchTransforms:
    """Transforms of augmented training batches on the device.

    A transform takes images, float32 (N, channels, height, width) on the 0-255 scale (0-65535 of 16
    bits), and labels, float32 (N, classes), one-hot at first, and returns both, as MixUp and CutMix
    of torchvision's v2 do. It draws by (seed, epoch, batch), the same on all devices.
    """

    def __init__(
        self, transforms: Sequence[Callable[..., tuple[Tensor, Tensor]]], seed: int
    ) -> None:
        self.transforms = transforms
        self.seed = seed

    @cached_property
    def _held(self) -> list[object]:
        return held_generators(self.transforms)

    def __call__(self, batch: ImageBatch, num_classes: int, *position: int) -> ImageBatch:
        """Returns the batch at an epoch and step, images rounded to their type, and soft labels."""
        if not self.transforms:
            return batch
        images = batch.images.float()
        is_soft = batch.labels.dim() > 1
        labels = (batch.labels if is_soft else F.one_hot(batch.labels, num_classes)).float()
        seed = derived_seed(Purpose.BATCH_TRANSFORMS, self.seed, *position)
        devices = [images.device] if images.device.type == "cuda" else []
        with isolate_rng(include_cuda=False), torch.random.fork_rng(devices):
            seed_generators(seed, images.device, self._held)
            for transform in self.transforms:
                with options_of_library(type(transform), "batch_transforms"):
                    images, labels = transform(images, labels)
        dtype = batch.images.dtype
        rounded = images.round().clamp(0, torch.iinfo(dtype).max).to(dtype)
        return batch._replace(images=rounded, labels=labels)
