"""The base of data modules: the same batches on any number of devices, exact resuming."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import torch
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt
from lightning.pytorch import LightningDataModule
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_convert

from ..exact._errors import UserError, require
from ..exact._loader import EvaluationSampler, TrainingSampler, seed_batch, shuffled
from ..exact._upstream import cycles_loaders, position_of
from ..exact._workers import LazyDataLoader, worker_options
from ._batch import (
    ArrayDataset,
    BatchDataset,
    BatchTransforms,
    ImageBatch,
    TransformedDataset,
    digest_of,
    repeated_draw,
    weighted_draw,
)
from ._checkpoint import ABOUT, About, read_checkpoint, require_same_classes
from ._checkpoints import note_change, opened_data
from ._downloads import fetch_archive
from ._hardware import loader_workers
from ._preprocessing import Preprocessing, as_colour
from ._settings import remembered
from ._splits import stratified_split

_TRANSFORMS = ["train_transforms", "batch_transforms"]


class ImageDataModule(LightningDataModule, ABC):
    """Serves three splits; a batch is a function of (seed, epoch, batch) on any devices.

    Args:
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches``
            makes a step of several.
        num_workers: Processes that load images, for each device; by default one less than the cores
            there are, at most 8, or none where images lie in memory and there are no
            ``train_transforms``.
        prefetch_factor: Advanced: Batches that each of these holds ready.
        device_cache: Advanced: Caches images that lie in memory on the device as well, which saves
            copying each batch; it takes 3 bytes a pixel there.
        train_transforms: Transforms of each training image in the workers, before augmentation.
            Torchvision's v2, or other callables, which take and return uint8 (3, height, width).
        batch_transforms: Transforms of training batches on the device, as MixUp and CutMix. Each
            takes and returns images on the 0-255 scale and labels, (N, classes), after all other
            augmentation.
        class_balance: Draws images of small classes more often in training, from 0 to 1. At 0, each
            image is as likely; at 1, each class.
        repeats: Takes each training image that many times in succession, augmented anew. An epoch
            keeps its number of images, and so sees fewer different ones.
        mean: Advanced: Subtracted from each channel, on a scale of 0 to 1; by default that of the
            data, or of pretrained weights.
        std: Advanced: Divides each channel after that, on the same scale; by default as ``mean``.
        split_seed: Advanced: Decides which images are validation's and which are test's, where the
            data does not say.
        seed: Decides order and augmentation; the command line takes it from ``--seed_everything``.
    """

    channels = 3
    """The number of channels of an image."""
    not_remembered: tuple[str, ...] = ()
    """Options that checkpoints cannot hold, as they are no plain data."""
    test_split = "test"
    """The split that a test measures: ``test``, or another such as ``val``."""
    layout = ""
    """How the data was understood, and what is left out, in one line for people to read."""
    fetch_archive = staticmethod(fetch_archive)

    def __init__(
        self,
        batch_size: PositiveInt = 64,
        num_workers: NonNegativeInt | None = None,
        prefetch_factor: PositiveInt = 2,
        device_cache: bool = False,
        train_transforms: list[Callable[..., Any]] | None = None,
        batch_transforms: list[Callable[..., Any]] | None = None,
        class_balance: ClosedUnitInterval = 0.0,
        repeats: PositiveInt = 1,
        mean: list[ClosedUnitInterval] | None = None,
        std: list[ClosedUnitInterval] | None = None,
        split_seed: int = 0,
        seed: NonNegativeInt = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=[*_TRANSFORMS, *self.not_remembered], logger=False)
        self.hparams.update(remembered(self.hparams)[0])  # plain, as weights_only requires
        self.batch_size = int(batch_size)  # a checkpoint of yours may hold it
        self.class_balance = class_balance
        self.repeats = repeats
        self.split_seed = split_seed
        self.seed = seed
        self.mean = [*map(float, mean or ())]
        self.std = [*map(float, std or ())]
        for option, values in {"mean": self.mean, "std": self.std}.items():
            require(
                len(values) in (0, self.channels),
                option,
                values,
                f"{self.channels} numbers, one for each channel",
            )
        require(0 not in self.std, "std", self.std, "above 0")
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.train_transforms = [*(train_transforms or ())]
        self.batch_transforms = [*(batch_transforms or ())]
        self._transform_batch = BatchTransforms(self.batch_transforms, seed)
        self.device_cache = device_cache
        self.splits: Mapping[str, BatchDataset] = {}
        self.compared_with: About = {}  # a checkpoint's, once the data is loaded
        self._digests: dict[str, str] = {}
        self._on_device: dict[str, Tensor] = {}

    @property
    @abstractmethod
    def class_names(self) -> list[str]:
        """The classes in the order of their labels, known before anything is downloaded."""

    @property
    @abstractmethod
    def preprocessing(self) -> Preprocessing:
        """The steps that make an image the network's input in evaluation."""

    @abstractmethod
    def load(self) -> Mapping[str, BatchDataset]:
        """Opens ``train``, ``val`` and ``test``; :class:`ArrayDataset` if images lie in memory."""

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # a file could name what is imported
        cls,
        checkpoint_path: str | Path,
        map_location: object = None,  # noqa: ARG003  # as callers of Lightning's give it
        hparams_file: str | Path | None = None,
        weights_only: Literal[True] | None = None,  # noqa: ARG003  # likewise
        **kwargs: Any,
    ) -> Self:
        """Builds the data module that a checkpoint was trained with, and restores its state.

        Args:
            checkpoint_path: The checkpoint, whose data module must be imported.
            map_location: Without effect: a data module has no device.
            hparams_file: A YAML or CSV file of options in place of those in the checkpoint.
            weights_only: Always true.
            kwargs: Options that differ from those of training, as the ``root`` of moved images.

        Raises:
            UserError: The class is not imported, or has other classes; what is wrong with its
                images is said when these are loaded.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        data: Self = opened_data(ImageDataModule, checkpoint, hparams_file, kwargs)
        data.compared_with = checkpoint[ABOUT]
        data.expect_classes(checkpoint[ABOUT]["class_names"], checkpoint_path)
        return data

    def expect_classes(self, names: Sequence[str], source: str | Path) -> None:
        """Requires the classes that a checkpoint knows, before anything is loaded."""
        require_same_classes([*names], source, self.class_names)

    def augment(self, batch: ImageBatch, epoch: int) -> ImageBatch:
        """Augments a training batch on the device, as a function of (seed, epoch, index)."""
        return batch

    def mean_colour(self, images: Tensor) -> Tensor:
        """The colour, (channels,), that normalising makes zero, as the images store it."""
        return as_colour(tuple(self.preprocessing["mean"]), images.device, images.dtype)

    def split_sizes(self) -> dict[str, int]:
        """Returns the number of images of each split; before loading, an upper bound if known."""
        return {split: len(data) for split, data in self.splits.items()}

    def digests(self) -> dict[str, str]:
        """Hashes the names and labels of each split's samples, in their order.

        Two data sets that lie in different places are the same if these are equal.
        """
        self.splits = self.splits or self.load()
        self._digests = self._digests or {
            split: digest_of(map(data.name, range(len(data))), getattr(data, "labels", None))
            for split, data in self.splits.items()
        }
        return self._digests

    def class_counts(self) -> list[int]:
        """The number of training images of each class; known after ``setup``."""
        labels = self.splits["train"].labels
        if labels.dim() > 1:
            raise UserError("class_balance and class_weights need images of one class each")
        return labels.bincount(minlength=len(self.class_names)).tolist()

    def stratified_split(
        self, labels: Sequence[int], fractions: Mapping[str, float]
    ) -> dict[str, list[int]]:
        """Cuts samples with these labels into ``train`` and splits of these shares of each class.

        Returns the positions of each split's samples, for a dataset that does not grow.
        """
        return stratified_split(labels, fractions, self.split_seed, self.class_names)

    def transforms_in_words(self) -> dict[str, list[str]]:
        """The options that are callables, for people to read, without addresses of functions."""
        return {
            option: [
                re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(transform).split()))
                for transform in getattr(self, option)
            ]
            for option in _TRANSFORMS
        }

    @property
    def world(self) -> tuple[int, int]:
        """The number of processes, and the rank of this one."""
        trainer = self.trainer
        return (trainer.world_size, trainer.global_rank) if trainer is not None else (1, 0)

    @property
    def split_in_use(self) -> str:
        """The split that the trainer is working on, ``train`` without a trainer."""
        if self.trainer is None or self.trainer.training:
            return "train"
        return self.test_split if self.trainer.testing or self.trainer.predicting else "val"

    def _position(self) -> tuple[int, int]:
        """The epoch that training is in, and the number of its batches that are done."""
        return position_of(self.trainer) if self.trainer is not None else (0, 0)

    def setup(self, stage: str) -> None:
        """Opens the datasets once."""
        self.splits = self.splits or self.load()
        if self.compared_with and self.world[1] == 0:
            note_change(self.compared_with, self)
        self.compared_with = {}  # said once
        if stage == "fit":
            self.digests()  # before a callback exchanges the images
            self.require_usable(self.world[0])

    def require_usable(self, world_size: int) -> None:
        """Checks the batch size and the sizes of all splits against the number of devices."""
        batch_size = self.batch_size
        sizes = self.split_sizes()
        size = sizes.get("train", batch_size)
        divisible = batch_size // world_size * world_size or world_size
        require(
            batch_size <= size,
            "batch_size",
            batch_size,
            f"at most {size}, the number of training images",
        )
        require(
            batch_size == divisible,
            "batch_size",
            batch_size,
            f"a multiple of {world_size}, the number of devices, such as {divisible}",
        )
        require(
            self.repeats <= batch_size,
            "repeats",
            self.repeats,
            f"at most the batch_size, {batch_size}",
        )
        for split in ("val", "test"):  # Lightning asks for the test's loader after training
            _require_shares(split, sizes.get(split, world_size), world_size)

    def order(self, epoch: int) -> Tensor:
        """Returns the order of an epoch's training images without ``class_balance``, int64 (N,).

        By default each comes once. One of yours has as many, may have an image again, which is
        augmented anew, and must be a function of the seed and the epoch alone.
        """
        return shuffled(len(self.splits["train"]), self.seed, epoch)

    def train_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the training set in the order of seed and epoch; to overfit, in one order."""
        train = self.splits["train"]
        size = len(train)
        draw = self.order
        if self.class_balance > 0:
            draw = partial(
                weighted_draw,
                train.labels.cpu(),
                torch.tensor(self.class_counts()),
                self.batch_size,
                self.class_balance,
                self.seed,
            )
        sampler = TrainingSampler(
            size,
            self.batch_size,
            self.seed,
            self._position,
            *self.world,
            same_each_epoch=getattr(self.trainer, "overfit_batches", 0) > 0,
            draw=partial(repeated_draw, draw, size, self.repeats),
            cycles=lambda: self.trainer is None or cycles_loaders(self.trainer),
        )
        return self._loader(self._served("train"), sampler, "train")

    def val_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the validation set, always in the same shuffled order."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the test set likewise."""
        return self._evaluation_loader(self.test_split)

    def predict_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the test set in its own order; Lightning deals it out to several processes."""
        return self.whole_split(self.test_split)

    def whole_split(self, split: str) -> DataLoader[ImageBatch]:
        """Loads a split once, in the order of its indices and without augmentation."""
        return self._loader(self.splits[split], None, split)

    def _evaluation_loader(self, split: str) -> DataLoader[ImageBatch]:
        # not by the run's seed: runs that differ in it alone are measured on the same first batches
        size = len(self.splits[split])
        _require_shares(split, size, self.world[0])
        sampler = EvaluationSampler(shuffled(size, self.split_seed, 0), *self.world)
        return self._loader(self._served(split), sampler, split)

    def _served(self, split: str) -> object:
        """Returns the dataset of a split as its loader sees it."""
        dataset = self.splits[split]
        if self.device_cache:
            if self.train_transforms or not isinstance(dataset, ArrayDataset):
                raise UserError("needs images in memory, and no train_transforms", "device_cache")
            # images without pixels: _augmented takes them from the device by their indices, and of
            # the split whose number is the last dimension
            stubs = torch.empty(len(dataset), 0, [*self.splits].index(split), dtype=torch.uint8)
            return ArrayDataset(stubs, dataset.labels, split)
        if split == "train" and self.train_transforms:
            return TransformedDataset(dataset, self.train_transforms, self.seed)
        return dataset

    def _loader(
        self, dataset: object, sampler: Iterable[object] | None, split: str
    ) -> LazyDataLoader:
        workers = self.workers(split)
        loader = LazyDataLoader(
            cast("Dataset[Any]", dataset),
            batch_size=max(1, self.batch_size // self.world[0]),
            sampler=sampler,
            num_workers=workers,
            prefetch_factor=self.prefetch_factor if workers else None,
            collate_fn=default_convert,  # a dataset serves whole batches
            pin_memory=self.pins_memory(),
            **worker_options(workers),
        )
        if self.trainer is not None:
            # here, because Lightning calls no other hook of ours before a user's
            # on_before_batch_transfer, which may draw
            loader.before_batch = partial(seed_batch, self.trainer, self.seed)
        return loader

    def pins_memory(self) -> bool:
        """Returns True if batches are put where a GPU can fetch them by itself."""
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def workers(self, split: str = "train") -> int:
        """The number of processes that load images for this device."""
        is_transformed = split == "train" and self.train_transforms
        is_ready = isinstance(self.splits[split], ArrayDataset) and not is_transformed
        if self.num_workers is not None or is_ready:
            return self.num_workers or 0
        devices = self.trainer.num_devices if self.trainer is not None else 1
        return loader_workers(devices)

    def on_after_batch_transfer(self, batch: object, dataloader_idx: int) -> object:
        """Augments a training batch; one of several loaders may hold other batches as well."""
        return apply_to_collection(batch, ImageBatch, self._augmented)

    def _augmented(self, batch: ImageBatch) -> ImageBatch:
        if self.device_cache and batch.images.dim() == 3:  # the stubs of _served
            split = [*self.splits][batch.images.shape[2]]
            batch = batch._replace(images=self._cached(split, batch.indices))
        if self.split_in_use == "train":
            epoch, step = self._position()
            augmented = self.augment(batch, epoch)
            return self._transform_batch(augmented, len(self.class_names), epoch, step)
        return batch

    def _cached(self, split: str, indices: Tensor) -> Tensor:
        """Returns images of a split from its copy on the device, made with its first batch."""
        dataset = cast(ArrayDataset, self.splits[split])
        # another trainer may be on another device
        self._on_device[split] = self._on_device.get(split, dataset.images).to(indices.device)
        return self._on_device[split][indices % len(dataset)]


def _require_shares(split: str, size: int, world_size: int) -> None:
    """Refuses a split of which a process would get no image."""
    if size < world_size:
        advice = f"; use {size} devices" if size else ""
        raise UserError(
            f"the {split} set has fewer images, {size}, than there are processes,"
            f" {world_size}{advice}"
        )
