"""Any map-style ``torch.utils.data.Dataset`` of (image, label), served as image files are."""

import copy
import operator
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from ..errors import LocalError, UserError
from ..preprocessing import Preprocessing, empty_images
from ..randomness import Purpose, derived_seed, seed_generators
from .batch import ImageBatch, Keys, split_keys
from .decode import open_image, upright_pixels
from .files import Scale, crop_draws, fit_opened, fit_pixels

_LABEL_LISTS = ("targets", "labels", "_labels")  # as the datasets of torchvision call them


class MapDataset(Protocol):
    """Any class with ``__getitem__`` and ``__len__``, of torch or not.

    A sample is an image and its label; the image is one of PIL, uint8 (channels, height, width), or
    a file's bytes.
    """

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


class TorchDataset:
    """Samples of a map-style dataset, cropped when a batch asks for them.

    What the dataset itself does at random is repeatable: around each access, the generators of
    torch, NumPy and Python are seeded by (seed, epoch, index). ``positions`` are those of the
    samples in ``dataset``.
    """

    def __init__(
        self,
        dataset: MapDataset,
        positions: list[int],
        num_classes: int,
        preprocessing: Preprocessing,
        crop_scale: Scale | None = None,
        seed: int = 0,
    ) -> None:
        self.dataset = dataset
        self.positions = positions
        self.num_classes = num_classes
        self.preprocessing = preprocessing
        self.crop_scale = crop_scale
        self.seed = seed

    @property
    def labels(self) -> Tensor:
        """int64 (N,); an error where they cannot be had without loading every image."""
        labels = labels_of(self.dataset)
        if labels is None:
            raise UserError(
                f"the dataset {type(self.dataset).__name__} does not tell its labels without"
                " loading every image; give it a list of them called targets"
            )
        return labels[torch.tensor(self.positions)]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        epoch, indices = split_keys(keys)
        images = empty_images(len(keys), self.preprocessing)
        labels = torch.empty(len(keys), dtype=torch.int64)
        draws = crop_draws(self.seed, epoch, indices)
        with isolate_rng(include_cuda=False):
            for row, index in enumerate(indices.tolist()):
                images[row], labels[row] = self._sample(self.dataset, index, epoch, draws[row])
        return ImageBatch(images, labels, indices)

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (3, crop, crop)."""
        with isolate_rng(include_cuda=False):
            return self._sample(_unopened(self.dataset), index)[0]

    def name(self, index: int) -> str:
        """The dataset's class and the sample's position in it."""
        return f"{type(self.dataset).__name__}[{self.positions[index]}]"

    def _sample(
        self, dataset: MapDataset, index: int, epoch: int = 0, draws: Tensor | None = None
    ) -> tuple[Tensor, int]:
        """Returns a sample's image, cropped at random by ``draws``, and its label."""
        position = index % len(self)
        name = self.name(position)
        seed_generators(derived_seed(Purpose.DATASET, self.seed, epoch, index))
        sample = dataset[self.positions[position]]
        if not (isinstance(sample, tuple | list) and len(sample) == 2):
            raise LocalError(f"{name} must be (image, label), got {type(sample).__name__}")
        image, label = sample
        fitting = self.preprocessing, draws, self.crop_scale
        try:
            label = operator.index(label)
            if isinstance(image, bytes):
                with open_image(name, image) as opened:
                    pixels = fit_opened(opened, name, *fitting)
            else:
                pixels = fit_pixels(pixels_of(image), *fitting)
        except (TypeError, ValueError) as error:
            raise LocalError(f"{name}: {error}") from error
        if not 0 <= label < self.num_classes:
            raise LocalError(
                f"{name}: its label must be from 0 to {self.num_classes - 1}, got {label}; see"
                " --data.class_names"
            )
        return pixels, label


def pixels_of(image: object) -> Tensor:
    """Converts a dataset's image to upright RGB pixels, uint8 (3, height, width)."""
    if isinstance(image, Image.Image):
        return upright_pixels(image)
    kind = type(image).__name__
    if isinstance(image, Tensor):
        if image.dtype == torch.uint8 and image.dim() == 3 and image.shape[0] in (1, 3):
            return image.as_subclass(Tensor).cpu().expand(3, -1, -1)
        kind = f"{image.dtype} {tuple(image.shape)}; leave out ToTensor, ToDtype and Normalize"
    raise TypeError(
        "its image must be of PIL, a file's bytes, or a uint8 tensor (1 or 3 channels, height,"
        f" width), got {kind}"
    )


def labels_of(dataset: Any) -> Tensor | None:
    """The labels of a dataset, int64 (N,); None where they cannot be had without loading images."""
    if isinstance(dataset, Subset):
        labels = labels_of(dataset.dataset)
        return None if labels is None else labels[torch.tensor(dataset.indices)]
    if getattr(dataset, "target_transform", None) is not None:  # the list has other labels
        return None
    for name in _LABEL_LISTS:
        listing = np.asarray(getattr(dataset, name, None))
        if listing.dtype.kind in "iu" and listing.shape == (len(dataset),):
            return torch.from_numpy(listing.astype(np.int64))
    return None


def class_names_of(dataset: Any) -> list[str]:
    """Returns the class names: the dataset's ``classes``, else numbers, or none if unknown."""
    if isinstance(dataset, Subset):
        return class_names_of(dataset.dataset)
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, list | tuple):  # ImageNet's are tuples of synonyms
        return [", ".join(name) if isinstance(name, tuple) else str(name) for name in classes]
    labels = labels_of(dataset)
    count = getattr(dataset, "num_classes", 0) if labels is None else int(labels.max()) + 1
    return [str(label) for label in range(count)]


def _unopened(dataset: Any) -> Any:
    """Copies the dataset, so that files opened here are not shared with the workers."""
    fresh = copy.copy(dataset)
    if isinstance(fresh, Subset):
        fresh.dataset = _unopened(fresh.dataset)
    return fresh
