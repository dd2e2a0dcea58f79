"""Any map-style dataset of (image, label), such as torchvision's, served as image files are."""

import copy
import operator
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset

from ..exact._errors import LocalError, UserError
from ..exact._randomness import Purpose, derived_seed, held_generators, seed_generators
from ._batch import BatchDataset, ImageBatch, Keys, digest_of, split_keys
from ._class_names import require_class_names
from ._decode import upright_pixels
from ._downloads import one_at_a_time
from ._files import Fitting, Scale, draw_fittings, prepare
from ._layout import split_names
from ._preprocessing import Preprocessing, empty_images
from ._resized import ResizedDataModule
from ._splits import SPLITS, grouped_split

_LABEL_LISTS = ("targets", "labels", "_labels")  # as the datasets of torchvision call them

Source = Callable[[], Sized] | Dataset[Any] | Callable[..., object]
"""A dataset, or a callable that returns one; ``Sized`` lets a parser accept any such class."""


class MapDatasetModule(ResizedDataModule):
    """Any map-style dataset of (PIL image, uint8 tensor or file's bytes; label).

    Args:
        train: The class of the dataset, or a function that returns it, with its own options behind
            it, as in ``--data.train.root``. From Python, a dataset, too.
        val: The same for validation; by default a part of ``train``.
        test: The same for the test; by default a part of ``train``.
        class_names: The names of the classes in the order of the labels; by default those that
            ``train`` has as ``classes``, or else numbers.
        kwargs: See ``ResizedDataModule``.
    """

    not_remembered: tuple[str, ...] = SPLITS
    split_names = staticmethod(split_names)

    def __init__(
        self,
        train: Source,
        val: Source | None = None,
        test: Source | None = None,
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sources = {"train": train, "val": val, "test": test}
        self._sources = {split: source for split, source in sources.items() if source is not None}
        self._class_names = class_names

    @property
    def class_names(self) -> list[str]:
        """The names that were given, or else the dataset's; no two are equal."""
        names = self._class_names or class_names_of(self.datasets["train"])
        if not names:
            raise UserError("the dataset has no list of classes; give their names", "class_names")
        return require_class_names(names)

    def prepare_data(self) -> None:
        """Opens the datasets, which may download them, and loads one sample of each."""
        for dataset in self.load().values():
            dataset.image(0)

    @cached_property
    def datasets(self) -> dict[str, Any]:
        """The datasets of the splits that there are."""
        opened = {split: _opened(split, source) for split, source in self._sources.items()}
        datasets = {**self.parts_of(opened.pop("train")), **opened}
        expected = class_names_of(datasets["train"])
        for split, dataset in datasets.items():
            differs = hasattr(dataset, "classes") and class_names_of(dataset) != expected
            if differs and self._class_names is None:
                raise UserError("needs the classes of train, in the same order", split)
        # a checkpoint records the classes' names, but builds nothing by them
        named = self._sources.keys() & {*self.not_remembered}
        self.hparams.update({split: type(datasets[split]).__qualname__ for split in named})
        return datasets

    def parts_of(self, dataset: Any) -> Mapping[str, Any]:
        """Returns the datasets of the splits that ``train`` holds, by default itself alone."""
        return {"train": dataset}

    def split_sizes(self) -> dict[str, int]:
        """The number of samples in each split."""
        return {split: len(positions) for split, positions in self.positions.items()}

    @cached_property
    def positions(self) -> dict[str, list[int]]:
        """The samples of each split, as positions in their dataset.

        Splits that have no dataset are cut from ``train`` by hashes of the samples' names, class by
        class if its labels are known without loading images.
        """
        positions = {split: [*range(len(dataset))] for split, dataset in self.datasets.items()}
        fractions = {
            split: share for split, share in self.fractions.items() if split not in self.datasets
        }
        labels = self._classes_of_samples()
        names = [*map(self.sample_name, positions["train"])]
        split_of = grouped_split(labels, names, fractions, self.split_seed)  # by position
        positions |= {
            split: [position for position, name in enumerate(split_of) if name == split]
            for split in ("train", *fractions)
        }
        return {split: positions[split] for split in SPLITS}

    def cut(self, split_seed: int, fractions: Mapping[str, float]) -> None:
        """Cuts the samples anew, by another seed and other fractions."""
        self.split_seed = split_seed
        self.fractions = dict(fractions)
        self.splits = {}
        self._digests = {}
        vars(self).pop("positions", None)

    def sample_name(self, position: int) -> str:
        """Returns the name whose hash decides a training sample's split: its position."""
        return str(position)

    def digests(self) -> dict[str, str]:
        """Hashes the names of each split's samples, and their labels if these are known."""
        if not self._digests:
            for split, positions in self.positions.items():
                is_separate = split in self.datasets and split != "train"
                names = map(str if is_separate else self.sample_name, positions)
                dataset = self.datasets.get(split, self.datasets["train"])
                self._digests[split] = digest_of(names, labels_of(Subset(dataset, positions)))
        return self._digests

    def _classes_of_samples(self) -> list[str]:
        """Returns the class of each training sample, one for all if labels are unknown."""
        dataset = self.datasets["train"]
        if (labels := labels_of(dataset)) is None:
            return [type(dataset).__name__] * len(dataset)
        names = dict(enumerate(self.class_names))
        # a label that has no name is an error once its sample is loaded
        return [names.get(label, str(label)) for label in labels.tolist()]

    def load(self) -> dict[str, BatchDataset]:
        """Makes the three splits."""
        count = len(self.class_names)
        splits: dict[str, BatchDataset] = {}
        for split, positions in self.positions.items():
            dataset = self.datasets.get(split, self.datasets["train"])
            is_training = split == "train"
            splits[split] = TorchDataset(
                Subset(dataset, positions),
                count,
                self.preprocessing,
                self.crop_scale if is_training else None,
                self.seed if is_training else self.split_seed,  # measured alike in any run
                self.train_preprocessing if is_training else (),
            )
        return splits


def _opened(option: str, source: Any) -> Any:
    """Opens a dataset; one process at a time if it says that it downloads, and where to."""
    if callable(source) and not hasattr(source, "__getitem__"):
        options = getattr(source, "keywords", {})  # of a partial, which the command line makes
        if options.get("download") and options.get("root"):
            with one_at_a_time(Path(options["root"]).expanduser().absolute()):
                source = source()
        else:
            source = source()
    if isinstance(source, IterableDataset) or not hasattr(source, "__getitem__"):
        raise UserError(
            f"{type(source).__name__} is not map-style: without an index, the samples of a step"
            " cannot be the same on any number of devices and after a restart; give a dataset with"
            " __getitem__ and __len__",
            option,
        )
    if len(source) == 0:
        raise UserError(f"{type(source).__name__} has no samples", option)
    return source


class TorchDataset:
    """Samples of a map-style dataset, cropped when a batch asks for them.

    A sample is an image and its label; the image is one of PIL, uint8 (channels, height, width), or
    a file's bytes. What the dataset itself does at random is repeatable: before each access, the
    generators of torch, NumPy and Python, and those that it holds, are seeded by (seed, epoch,
    index).
    """

    def __init__(
        self,
        dataset: Subset[Any],
        num_classes: int,
        preprocessing: Preprocessing,
        crop_scale: Scale | None,
        seed: int,
        train_preprocessing: Sequence[Preprocessing] = (),
    ) -> None:
        self.dataset = dataset
        self.num_classes = num_classes
        self.preprocessing = preprocessing
        self.crop_scale = crop_scale
        self.seed = seed
        self.train_preprocessing = train_preprocessing or [preprocessing]
        self.held = held_generators(dataset.dataset)

    @property
    def labels(self) -> Tensor:
        """int64 (N,); an error where they cannot be had without loading every image."""
        labels = labels_of(self.dataset)
        if labels is None:
            raise UserError(
                f"the dataset {type(self.dataset.dataset).__name__} does not tell its labels without"
                " loading every image; give it a list of them called targets"
            )
        return labels

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Keys) -> ImageBatch:
        epoch, indices = split_keys(keys)
        images = empty_images(len(keys), self.train_preprocessing[0])
        labels = torch.empty(len(keys), dtype=torch.int64)
        fittings = draw_fittings(
            self.train_preprocessing, self.crop_scale, self.seed, epoch, indices
        )
        with isolate_rng(include_cuda=False):
            for row, index in enumerate(indices.tolist()):
                images[row], labels[row] = self._sample(self.dataset, index, epoch, fittings[row])
        return ImageBatch(images, labels, indices)

    def image(self, index: int) -> Tensor:
        """One image as evaluation sees it, uint8 (3, *crop)."""
        with isolate_rng(include_cuda=False):
            fitting = self.preprocessing, None, None
            return self._sample(_unopened(self.dataset), index, 0, fitting)[0]

    def name(self, index: int) -> str:
        """The dataset's class and the sample's position in it."""
        return f"{type(self.dataset.dataset).__name__}[{self.dataset.indices[index]}]"

    def _sample(
        self, dataset: Subset[Any], index: int, epoch: int, fitting: Fitting
    ) -> tuple[Tensor, int]:
        """Returns a sample's image, fitted, and its label."""
        position = index % len(self)
        name = self.name(position)
        seed_generators(derived_seed(Purpose.DATASET, self.seed, epoch, index), held=self.held)
        sample = dataset[position]
        if not (isinstance(sample, tuple | list) and len(sample) == 2):
            count = f" of {len(sample)}" if isinstance(sample, tuple) else ""
            raise LocalError(f"{name} must be (image, label), got {type(sample).__name__}{count}")
        image, label = sample
        try:
            label = operator.index(label)
            pixels = (
                prepare(name, *fitting, content=image)
                if isinstance(image, bytes)
                else prepare(pixels_of(image), *fitting)
            )
        except (TypeError, ValueError) as error:
            raise LocalError(f"{name}: {error}") from error
        if not 0 <= label < self.num_classes:
            raise LocalError(
                f"{name}: its label must be from 0 to {self.num_classes - 1}, got {label}; see"
                " class_names"
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


def labels_of(dataset: object) -> Tensor | None:
    """Returns a dataset's labels, int64 (N,); None if that would need to load images."""
    if isinstance(dataset, Subset):
        labels = labels_of(dataset.dataset)
        return None if labels is None else labels[torch.tensor(dataset.indices, dtype=torch.int64)]
    if getattr(dataset, "target_transform", None) is not None:  # the list has other labels
        return None
    for name in _LABEL_LISTS:
        with suppress(ValueError):  # lists of several lengths, as of several labels
            listing = np.asarray(getattr(dataset, name, None))
            if listing.dtype.kind in "iu" and listing.shape == (len(cast(Sized, dataset)),):
                return torch.from_numpy(listing.astype(np.int64))
    return None


def class_names_of(dataset: object) -> list[str]:
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
