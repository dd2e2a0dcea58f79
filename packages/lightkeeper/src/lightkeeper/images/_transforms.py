"""A user's transforms of training images, whose random draws no other batch or worker decides."""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.nn import functional as F

from ..exact._errors import LocalError
from ..exact._randomness import Purpose, derived_seed, held_generators, seed_generators
from ._batch import BatchDataset, ImageBatch, Keys, split_keys
from ._settings import options_of_library


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
        labels = batch.labels if is_soft else F.one_hot(batch.labels, num_classes)
        labels = labels.float()
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
