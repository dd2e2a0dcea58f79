"""The user's transforms: of images in loader workers, and of batches on the device.

A transform draws from generators that the whole process shares. Around each sample these are seeded
by (seed, epoch, index), and around the transforms of a batch by (seed, epoch, batch), so no draw
depends on what was drawn before.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch.nn import functional as F

from ..errors import LocalError
from ..randomness import Purpose, derived_seed, seed_generators
from .batch import BatchDataset, ImageBatch, Keys, split_keys

Transform = Callable[..., Any]


def describe(transform: object) -> str:
    """Describes a transform in one line, without the addresses of functions."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(transform).split()))


class TransformedDataset:
    """A training set whose images go through transforms, one at a time.

    Each transform takes an image, uint8 (3, height, width), and returns one; they are applied in
    their order.
    """

    def __init__(self, dataset: BatchDataset, transforms: Sequence[Transform], seed: int) -> None:
        self.dataset = dataset
        self.transforms = transforms
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        batch = self.dataset.__getitems__(keys)
        epoch, _ = split_keys(keys)
        images = []
        with isolate_rng(include_cuda=False):
            for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
                seed_generators(derived_seed(Purpose.TRANSFORMS, self.seed, epoch, index))
                for transform in self.transforms:
                    image = transform(image)
                images.append(image)
        stacked = torch.stack(images).contiguous(memory_format=torch.channels_last)
        kind, expected = (f"{x.dtype} with {x.shape[1]} channels" for x in (stacked, batch.images))
        if kind != expected:
            raise LocalError(
                f"--data.train_transforms must return {expected}, got {kind}; the model normalises"
                " on the device"
            )
        return batch._replace(images=stacked)


def transform_batch(
    batch: ImageBatch, transforms: Sequence[Transform], num_classes: int, seed: int
) -> ImageBatch:
    """Applies transforms of whole batches, with all generators seeded, and restored after them.

    A transform takes images, float32 (N, channels, height, width) on the 0-255 scale (0-65535 of 16
    bits), and labels, float32 (N, classes), one-hot at first, and returns both, as MixUp and CutMix
    of torchvision's v2 do. The batch that comes out has its images rounded to their type, and soft
    labels.
    """
    images = batch.images.float()
    labels = batch.labels if batch.labels.dim() == 2 else F.one_hot(batch.labels, num_classes)
    labels = labels.float()
    devices = [images.device] if images.device.type == "cuda" else []
    with isolate_rng(include_cuda=False), torch.random.fork_rng(devices):
        seed_generators(seed, images.device)
        for transform in transforms:
            images, labels = transform(images, labels)
    dtype = batch.images.dtype
    rounded = images.round().clamp(0, torch.iinfo(dtype).max).to(dtype)
    return batch._replace(images=rounded, labels=labels)
