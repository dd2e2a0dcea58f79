"""Transforms of the user's, torchvision's among them: of single images in loader workers, and of batches on the device.

A transform draws from generators that the whole process shares. Around each sample these are seeded by (seed, epoch,
index), and around the transforms of a batch by (seed, epoch, batch), so no draw depends on what was drawn before.
"""

import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import LocalError, UserError
from ..randomness import Purpose, derived_seed, restored_generators, seed_generators
from .batch import BatchDataset, ImageBatch, split_keys

Transform = Callable[..., Any]


def as_list(option: str, transforms: Sequence[Transform] | None) -> list[Transform]:
    """Checks that an option is a list of callables.

    Args:
        option: The option as it is typed.
        transforms: What was given; None stands for an empty list.

    Raises:
        UserError: It is not.
    """
    given = [] if transforms is None else transforms
    if not isinstance(given, list | tuple) or not all(callable(transform) for transform in given):
        raise UserError(f"{option} must be a list of callables, got {describe(given)}")
    return list(given)


def describe(transform: object) -> str:
    """A transform's class and options in one line, without the addresses that Python adds to functions."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(transform).split()))


class TransformedDataset:
    """A training set whose images go through transforms, one at a time.

    Args:
        dataset: The dataset.
        transforms: Each takes one image, uint8 (3, height, width), and returns one; applied in this order.
        seed: The seed of the run.
    """

    def __init__(self, dataset: BatchDataset, transforms: Sequence[Transform], seed: int) -> None:
        self.dataset, self.transforms, self.seed = dataset, transforms, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        """The batch of these samples, see :class:`project.engine.loading.batch.BatchDataset`.

        Raises:
            UserError: A transform fails or returns something other than an image, or images differ in size.
        """
        batch = self.dataset.__getitems__(keys)
        epoch, _ = split_keys(keys, len(self))
        images = []
        with restored_generators():
            for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
                seed_generators(derived_seed(Purpose.TRANSFORMS, self.seed, epoch, index))
                images.append(self._transformed(image))
        if len({image.shape for image in images}) > 1:
            sizes = " and ".join(sorted({f"{image.shape[1]} x {image.shape[2]}" for image in images})[:2])
            raise LocalError(f"--data.train_transforms return images of different sizes, {sizes}; add a resize to them")
        last = batch.images.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        return batch._replace(images=torch.stack(images).contiguous(memory_format=layout))

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to workers where the system does not fork them.

        Raises:
            UserError: A transform cannot be sent.
        """
        for transform in self.transforms:
            try:
                pickle.dumps(transform)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise UserError(
                    f"--data.train_transforms: {describe(transform)} cannot be sent to a loader worker ({error}); define it"
                    " at the top of a module, or give --data.num_workers 0"
                ) from error
        return self.__dict__

    def _transformed(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            image = apply("--data.train_transforms", transform, image)
            require_image(transform, image)
        return image


def apply(option: str, transform: Transform, *inputs: Tensor) -> Any:
    """Applies a transform.

    Args:
        option: The option that it is from.
        transform: The transform.
        inputs: What it takes.

    Raises:
        UserError: It is torchvision's and fails; of others, the traceback says more.
    """
    try:
        return transform(*inputs)
    except Exception as error:
        if not type(transform).__module__.startswith("torchvision."):
            raise
        raise LocalError(f"{option}: {describe(transform)} fails: {' '.join(str(error).split())}") from error


def require_image(transform: Transform, image: object) -> None:
    """Refuses what is no image.

    Args:
        transform: The transform that returned it.
        image: What it returned.

    Raises:
        UserError: It is not uint8 (3, height, width).
    """
    if not isinstance(image, Tensor):
        found = type(image).__name__
    elif image.dtype != torch.uint8:
        found = f"{image.dtype} (images stay uint8 until the model normalises them on the device)"
    elif image.dim() != 3 or len(image) != 3:
        found = f"the shape {tuple(image.shape)}"
    else:
        return
    raise LocalError(
        f"--data.train_transforms: {describe(transform)} must return an image, uint8 (3, height, width), got {found}"
    )


def transform_batch(batch: ImageBatch, transforms: Sequence[Transform], num_classes: int, seed: int) -> ImageBatch:
    """Applies transforms of whole batches, with all generators seeded, and restored after them.

    Args:
        batch: Images, uint8 (N, 3, height, width), and labels, int64 (N,), or (N, classes) of 0 and 1.
        transforms: Each takes images, float32 (N, 3, height, width) on the 0-255 scale, and labels, float32
            (N, classes), one-hot at first, and returns both; as MixUp and CutMix of torchvision's v2 do.
        num_classes: How many classes there are.
        seed: For the generators of the CPU and of the batch's device.

    Returns:
        The batch with its images rounded to uint8, and soft labels, float32 (N, classes).

    Raises:
        UserError: A transform fails or returns something other than images and labels.
    """
    images = batch.images.float()
    labels = (batch.labels if batch.labels.dim() == 2 else F.one_hot(batch.labels, num_classes)).float()
    devices = [images.device] if images.device.type == "cuda" else []
    with restored_generators(), torch.random.fork_rng(devices):
        seed_generators(seed, images.device)
        for transform in transforms:
            images, labels = _pair(transform, apply("--data.batch_transforms", transform, images, labels), labels.shape)
    return batch._replace(images=images.round().clamp(0, 255).to(torch.uint8), labels=labels)


def _pair(transform: Transform, found: Any, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Refuses what is no pair of images and labels."""
    if isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(part, Tensor) for part in found):
        images, labels = found
        if images.dim() == 4 and images.shape[:2] == (shape[0], 3) and labels.shape == shape:
            return images, labels
    raise LocalError(
        f"--data.batch_transforms: {describe(transform)} must return images, (N, 3, height, width) on the 0-255 scale, and"
        f" labels, {tuple(shape)}, as it is given"
    )
