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

from project.data.batch import BatchDataset, ImageBatch, split_keys
from project.data.randomness import Purpose, derived_seed, restored_generators, seed_generators
from project.errors import LocalError, UserError

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
        dataset: The data set.
        transforms: Each takes one image, uint8 (3, height, width), and returns one; applied in this order.
        seed: The seed of the run.
    """

    def __init__(self, dataset: BatchDataset, transforms: Sequence[Transform], seed: int) -> None:
        self.dataset, self.transforms, self.seed = dataset, transforms, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: list[int]) -> ImageBatch:
        """The batch of these samples, see :class:`project.data.batch.BatchDataset`.

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
