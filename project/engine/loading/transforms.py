"""The user's transforms: of images in loader workers, and of batches on the device.

A transform draws from generators that the whole process shares. Around each sample these are seeded
by (seed, epoch, index), and around the transforms of a batch by (seed, epoch, batch), so no draw
depends on what was drawn before.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import LocalError
from ..randomness import Purpose, derived_seed, restored_generators, seed_generators
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
        self.dataset, self.transforms, self.seed = dataset, transforms, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        batch, (epoch, _) = self.dataset.__getitems__(keys), split_keys(keys)
        images = []
        with restored_generators():
            for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
                seed_generators(derived_seed(Purpose.TRANSFORMS, self.seed, epoch, index))
                images.append(self._transformed(image, image.dtype, len(image)))
        if len({image.shape for image in images}) > 1:
            raise LocalError(
                "--data.train_transforms return images of different sizes; add a resize to them"
            )
        last = batch.images.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return batch._replace(images=torch.stack(images).contiguous(memory_format=layout))

    def _transformed(self, image: Tensor, dtype: torch.dtype, channels: int) -> Tensor:
        for transform in self.transforms:
            image = transform(image)
            if (
                not isinstance(image, Tensor)
                or image.dtype != dtype
                or image.dim() != 3
                or len(image) != channels
            ):
                kind = (
                    f"{image.dtype} {tuple(image.shape)}"
                    if isinstance(image, Tensor)
                    else type(image).__name__
                )
                raise LocalError(
                    f"--data.train_transforms: {describe(transform)} must return an image,"
                    f" {str(dtype)[6:]}"
                    f" ({channels}, height, width), got {kind}; the model normalises on the device"
                )
        return image


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
    labels = (
        batch.labels if batch.labels.dim() == 2 else F.one_hot(batch.labels, num_classes)
    ).float()
    shape, devices = labels.shape, [images.device] if images.device.type == "cuda" else []
    with restored_generators(), torch.random.fork_rng(devices):
        seed_generators(seed, images.device)
        for transform in transforms:
            output = transform(images, labels)
            if not (
                isinstance(output, tuple | list) and len(output) == 2 and output[1].shape == shape
            ):
                raise LocalError(
                    f"--data.batch_transforms: {describe(transform)} must return images on the"
                    " 0-255 scale, and labels,"
                    f" {tuple(shape)}, as it is given"
                )
            images, labels = output
    dtype = batch.images.dtype
    return batch._replace(
        images=images.round().clamp(0, torch.iinfo(dtype).max).to(dtype), labels=labels
    )
