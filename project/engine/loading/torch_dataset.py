"""Any map-style ``torch.utils.data.Dataset`` of (image, label), served as image files are."""

import copy
import operator
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset

from ..errors import LocalError, UserError
from ..preprocessing import Preprocessing, empty_images
from ..randomness import Purpose, derived_seed, restored_generators, seed_generators, uniform
from .batch import ImageBatch, Keys, split_keys
from .crops import fit_image, random_region
from .decode import decode, open_image, upright_pixels
from .files import CROP_TRIES, random_crop

if TYPE_CHECKING:
    from typing import Protocol as _Base  # jsonargparse would compare the names of arguments
else:
    _Base = ABC


class MapDataset(_Base):
    """Any class with ``__getitem__`` and ``__len__``, of torch or not.

    A sample is an image and its label; the image is one of PIL, uint8 (channels, height, width), or
    a file's bytes. A parser accepts a class or function that returns such.
    """

    @classmethod
    def __subclasshook__(cls, other: type, /) -> bool:
        """Returns True for map-style datasets, but not for values of options."""
        sized = hasattr(other, "__getitem__") and hasattr(other, "__len__")
        return issubclass(other, Dataset) or (sized and not issubclass(other, str | tuple | dict))

    @abstractmethod
    def __getitem__(self, index: int, /) -> Any: ...

    @abstractmethod
    def __len__(self) -> int: ...


_LABEL_LISTS = ("targets", "labels", "_labels")  # as the datasets of torchvision call them


class TorchDataset:
    """Samples of a map-style dataset, cropped when a batch asks for them.

    What the dataset itself does at random is repeatable: around each access, the generators of
    torch, NumPy and Python are seeded by (seed, epoch, index). A dataset with ``__getitems__`` is
    asked for a batch at once. ``positions`` are those of the samples in ``dataset``, and
    ``known_labels`` their labels where these can be had without loading images.
    """

    def __init__(
        self,
        dataset: MapDataset,
        positions: list[int],
        known_labels: Tensor | None,
        num_classes: int,
        preprocessing: Preprocessing,
        crop_scale: tuple[float, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.dataset, self.positions, self.known_labels = dataset, positions, known_labels
        self.num_classes, self.crop_scale, self.seed = num_classes, crop_scale, seed
        self.preprocessing, self.crop = preprocessing, preprocessing["crop"]
        self._by_batch = _fetches_batches(dataset)

    @property
    def labels(self) -> Tensor:
        """int64 (N,); an error where they cannot be had without loading every image."""
        if self.known_labels is None:
            raise UserError(
                f"the dataset {type(self.dataset).__name__} does not tell its labels without"
                " loading every image; give it a"
                " list of them called targets"
            )
        return self.known_labels

    def __len__(self) -> int:
        return len(self.positions)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        epoch, indices = split_keys(keys)
        images = empty_images(len(keys), self.preprocessing)
        labels = torch.empty(len(keys), dtype=torch.int64)
        draws = uniform(self.seed, epoch, indices, Purpose.CROP, 4 * CROP_TRIES).view(
            -1, CROP_TRIES, 4
        )
        with restored_generators():
            samples = self._fetch_batch(indices % len(self))
            for row, index in enumerate(indices.tolist()):
                position = index % len(self)
                sample = (
                    samples[row] if samples else self._fetch(self.dataset, position, index, epoch)
                )
                images[row], labels[row] = self._fitted(sample, position, draws[row])
        return ImageBatch(images, labels, indices)

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (3, crop, crop)."""
        with restored_generators():
            sample = self._fetch(_unopened(self.dataset), index, index, epoch=0)
            return self._fitted(sample, index)[0]

    def name(self, index: int) -> str:
        """The dataset's class and the sample's position in it."""
        return f"{type(self.dataset).__name__}[{self.positions[index]}]"

    def _fetch_batch(self, positions: Tensor) -> Sequence[Any] | None:
        """Fetches a batch at once; returns None if samples must be fetched individually.

        That is where the dataset draws random numbers, which must not depend on the batch.
        """
        if not self._by_batch:
            return None
        seed_generators(0)
        untouched = _draw()
        seed_generators(0)
        places = [self.positions[at] for at in positions.tolist()]
        samples: Sequence[Any] = self.dataset.__getitems__(places)  # type: ignore[attr-defined]
        self._by_batch = _draw() == untouched
        return samples if self._by_batch else None

    def _fetch(self, dataset: MapDataset, position: int, index: int, epoch: int) -> Any:
        seed_generators(derived_seed(Purpose.DATASET, self.seed, epoch, index))
        return dataset[self.positions[position]]

    def _fitted(
        self, sample: Any, position: int, draws: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Returns a sample's image, cropped at random by ``draws``, and its label."""
        name, scale = self.name(position), self.crop_scale
        if not (isinstance(sample, tuple | list) and len(sample) == 2):
            raise LocalError(f"{name} must be (image, label), got {type(sample).__name__}")
        try:
            image, label = sample[0], self._label(sample[1], position)
            if isinstance(image, bytes):
                with open_image(name, image) as opened:
                    if draws is not None and scale is not None:  # decoded no larger than needed
                        return random_crop(opened, name, draws, scale, self.preprocessing), label
                    pixels = decode(opened, name)
            else:
                pixels = pixels_of(image)
        except (TypeError, ValueError) as error:
            raise LocalError(f"{name}: {error}") from error
        if draws is not None and scale is not None:
            return random_region(pixels, draws, scale, self.preprocessing), label
        return fit_image(pixels, self.preprocessing), label

    def _label(self, label: Any, index: int) -> int:
        number = operator.index(label)
        if not 0 <= number < self.num_classes:
            raise ValueError(
                f"its label must be from 0 to {self.num_classes - 1}, got {number}; see"
                " --data.class_names"
            )
        if self.known_labels is not None and number != (known := int(self.known_labels[index])):
            raise ValueError(
                f"its label is {number}, but the dataset's list of labels says {known}"
            )
        return number


def _draw() -> tuple[float, ...]:
    """Draws a number from each generator that ``seed_generators`` seeds."""
    by_torch = torch.rand((), dtype=torch.float64).item()
    return by_torch, random.random(), float(np.random.rand())  # noqa: NPY002


def pixels_of(image: Any) -> Tensor:
    """Converts a dataset's image to upright RGB pixels, uint8 (3, height, width)."""
    if isinstance(image, Image.Image):
        return upright_pixels(image)
    if not isinstance(image, Tensor) or image.dtype != torch.uint8:
        kind = (
            f"{image.dtype}; leave out ToTensor, ToDtype and Normalize"
            if isinstance(image, Tensor)
            else type(image).__name__
        )
        raise TypeError(f"its image must be of PIL, a uint8 tensor or a file's bytes, got {kind}")
    if image.dim() != 3 or image.shape[0] not in (1, 3):
        raise ValueError(
            f"its image must be a tensor (1 or 3 channels, height, width), got {tuple(image.shape)}"
        )
    return image.as_subclass(Tensor).cpu().expand(3, -1, -1)


def labels_of(dataset: MapDataset) -> Tensor | None:
    """The labels of a dataset, int64 (N,); None where they cannot be had without loading images."""
    if isinstance(dataset, Subset):
        labels = labels_of(_whole(dataset))
        return None if labels is None else labels[torch.tensor(dataset.indices)]
    if getattr(dataset, "target_transform", None) is not None:  # the list has other labels
        return None
    for name in _LABEL_LISTS:
        listing = np.asarray(getattr(dataset, name, None))
        if listing.dtype.kind in "iu" and listing.shape == (len(dataset),):
            return torch.from_numpy(listing.astype(np.int64))
    return None


def class_names_of(dataset: MapDataset) -> list[str] | None:
    """Returns the class names: the dataset's ``classes``, else numbers, else None."""
    if isinstance(dataset, Subset):
        return class_names_of(_whole(dataset))
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, list | tuple) and classes:  # ImageNet's are tuples of synonyms
        return [
            ", ".join(map(str, name)) if isinstance(name, list | tuple) else str(name)
            for name in classes
        ]
    count = getattr(dataset, "num_classes", None)
    if isinstance(count, int) and count > 0:
        return [str(label) for label in range(count)]
    labels = labels_of(dataset)
    return (
        [str(label) for label in range(int(labels.max()) + 1)]
        if labels is not None and len(labels)
        else None
    )


def _fetches_batches(dataset: MapDataset) -> bool:
    """Returns True for a dataset with ``__getitems__``; a Subset's may be a plain loop."""
    if isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        return _fetches_batches(_whole(dataset))
    return callable(getattr(dataset, "__getitems__", None))


def _unopened(dataset: MapDataset) -> MapDataset:
    """Copies the dataset, so that files opened here are not shared with the workers."""
    fresh = copy.copy(dataset)
    if isinstance(fresh, Subset):
        fresh.dataset = cast("Dataset[Any]", _unopened(_whole(fresh)))
    return fresh


def _whole(subset: Subset[Any]) -> MapDataset:
    """Returns the dataset that a subset is of, which torch declares without a length."""
    return cast("MapDataset", subset.dataset)
