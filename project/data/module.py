"""The LightningDataModule that all kinds of data share: loaders, device-side augmentation, one global batch size."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, cast

from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from project.data.augmentation import Flip, augment
from project.engine.errors import UserError, require
from project.engine.hardware import usable_cores
from project.engine.loading.batch import BatchDataset, ImageBatch, WithoutImages, uncounted
from project.engine.loading.sharing import load_once_a_machine
from project.engine.loading.trainer import devices, overfits, position, split_in_use, world
from project.engine.loading.transforms import TransformedDataset, as_list, describe, transform_batch
from project.engine.loading.workers import (
    LazyDataLoader,
    leave_signals_to_the_run,
    plan_workers,
    say_once,
    share_batch,
)
from project.engine.preprocessing import Preprocessing, as_colour, in_unit
from project.engine.randomness import Purpose, derived_seed
from project.engine.training.sampler import BalancedOrder, EvaluationSampler, TrainingSampler

_TRANSFORMS = ["train_transforms", "batch_transforms"]
"""Options that are callables, with which a checkpoint would not load with ``weights_only=True``."""


class ImageDataModule(LightningDataModule, ABC):
    """Serves images with three splits; a kind of data says what the splits hold.

    Args:
        batch_size: Images in a batch of all devices together; ``--trainer.accumulate_grad_batches`` makes a step of several.
        num_workers: Processes that load images, for each device; by default one less than the cores there are, at most
            8, or none where images lie in memory and there are no ``train_transforms``.
        prefetch_factor: Batches that each of these holds ready.
        pin_memory: Whether batches are put where a GPU can fetch them by itself; by default where there is a GPU.
        device_cache: Whether images that lie in memory are cached on the device as well, which saves copying
            each batch; it takes 3 bytes a pixel there.
        flip: Whether half of the training images are mirrored left to right; ``alternating``, each in every second epoch.
        crop_padding: How far a training image is moved at most, in pixels; its mirrored edge fills the gap.
        cutout: The side of a square that is covered in each training image, in pixels; 0 covers nothing.
        train_transforms: Transforms of torchvision's v2, or other callables, that each training image goes through,
            uint8 (3, height, width), in the loader workers, before those above.
        batch_transforms: Transforms of whole training batches on the device, after those above, such as MixUp and CutMix
            of torchvision's v2: each takes and returns images on the 0-255 scale and labels, (N, classes).
        mean: What is subtracted from each RGB channel, on a scale of 0 to 1; by default that of the data, or what
            pretrained weights ask for.
        std: What each RGB channel is then divided by, on the same scale; by default as ``mean``.
        class_balance: How far training evens out classes of different sizes, by taking images of small ones more often:
            from 0, each image alike, to 1, each class alike; see docs/imbalance.md.
        split_seed: Decides which images are validation's and which are test's, where the data does not say.
        seed: Decides order and augmentation; the command line takes it from ``--seed_everything``.
    """

    in_memory = True
    """Whether the images lie in memory, once for all processes of a machine."""
    not_remembered: tuple[str, ...] = ()
    """Options that checkpoints cannot hold, as they are no plain data."""

    def __init__(
        self,
        batch_size: int = 64,
        num_workers: int | None = None,
        prefetch_factor: int = 2,
        pin_memory: bool | None = None,
        device_cache: bool = False,
        flip: Flip = True,
        crop_padding: int = 0,
        cutout: int = 0,
        train_transforms: list[Callable[..., Any]] | None = None,
        batch_transforms: list[Callable[..., Any]] | None = None,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        class_balance: float = 0.0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(ignore=[*_TRANSFORMS, *self.not_remembered], logger=False)
        require(batch_size >= 1, "--data.batch_size", batch_size, "at least 1")
        require(num_workers is None or num_workers >= 0, "--data.num_workers", num_workers, "0 or more")
        require(prefetch_factor >= 1, "--data.prefetch_factor", prefetch_factor, "at least 1")
        require(flip in (True, False, "alternating"), "--data.flip", flip, "true, false or alternating")
        require(crop_padding >= 0, "--data.crop_padding", crop_padding, "0 or more")
        require(cutout >= 0, "--data.cutout", cutout, "0 or more")
        require(mean is None or in_unit(mean), "--data.mean", mean, "three numbers from 0 to 1")
        require(std is None or (in_unit(std) and min(std) > 0), "--data.std", std, "three numbers above 0, at most 1")
        self.mean, self.std = list(mean or []), list(std or [])
        require(0 <= class_balance <= 1, "--data.class_balance", class_balance, "from 0 to 1")
        self.batch_size, self.split_seed, self.seed = batch_size, split_seed, seed
        self.num_workers, self.prefetch_factor, self.pin_memory = num_workers, prefetch_factor, pin_memory
        self.flip, self.crop_padding, self.cutout, self.class_balance = flip, crop_padding, cutout, class_balance
        self.train_transforms = as_list("--data.train_transforms", train_transforms)
        self.batch_transforms = as_list("--data.batch_transforms", batch_transforms)
        cached = "--data.device_cache", device_cache
        require(not device_cache or self.in_memory, *cached, "false where images are read from files")
        transformed = "false with --data.train_transforms, which take single images from memory"
        require(not (device_cache and self.train_transforms), *cached, transformed)
        self.device_cache = device_cache
        self.splits: Mapping[str, BatchDataset] = {}
        self._without_images: Collection[str] = ()
        self._on_device: dict[str, Tensor] = {}
        self._repeats: dict[str, int | None] = {}

    @property
    @abstractmethod
    def class_names(self) -> list[str]:
        """The classes in the order of their labels, known before anything is downloaded."""

    @property
    @abstractmethod
    def preprocessing(self) -> Preprocessing:
        """How an image becomes input in evaluation."""

    @abstractmethod
    def load(self) -> Mapping[str, BatchDataset]:
        """Opens the datasets ``train``, ``val`` and ``test``, as :class:`ArrayDataset` where ``in_memory`` is true."""

    def transforms_in_words(self) -> dict[str, list[str]]:
        """The options that are callables, for people to read."""
        return {option: [describe(transform) for transform in getattr(self, option)] for option in _TRANSFORMS}

    def setup(self, stage: str) -> None:
        """Opens the datasets once; each stage serves images anew, until a model's ``setup``, which follows, declines.

        Raises:
            UserError: Batch size or augmentation do not go with the training images or the number of devices.
        """
        self.serve_indices(())
        if not self.splits:
            self.splits = load_once_a_machine(cast(Any, self.load), self.trainer) if self.in_memory else self.load()
        if stage == "fit":
            self.require_usable(world(self.trainer)[0])

    def split_sizes(self) -> Mapping[str, int]:
        """How many images each split has; before they are loaded, as far as that is known, and at most that many."""
        return {split: len(data) for split, data in self.splits.items()} if self.splits else self.expected_sizes()

    def class_counts(self) -> list[int]:
        """How many training images each class has; known after ``setup``."""
        labels = self.splits["train"].labels
        if labels.dim() > 1:
            raise UserError("weighting or balancing classes needs images of one class each, but these may have several")
        return labels.bincount(minlength=len(self.class_names)).tolist()

    def expected_sizes(self) -> Mapping[str, int]:
        """What is known of the sizes of the splits before an image is drawn, downloaded or read; nothing by default."""
        return {}

    def require_usable(self, world_size: int) -> None:
        """Checks the batch size and the augmentation, by what is known of the training images so far.

        Raises:
            UserError: They do not go with the images or the number of devices.
        """
        batch_size, padding, side = self.batch_size, self.crop_padding, self.preprocessing["crop"]
        size = self.split_sizes().get("train", batch_size)
        require(batch_size <= size, "--data.batch_size", batch_size, f"at most {size}, the number of training images")
        divisible = batch_size // world_size * world_size or world_size
        wanted = f"a multiple of {world_size}, the number of devices, such as {divisible}"
        require(batch_size % world_size == 0, "--data.batch_size", batch_size, wanted)
        require(padding < side, "--data.crop_padding", padding, f"below {side}, the side of an image")

    def train_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the training set in an order that depends on seed and epoch alone; to overfit, always in the same."""
        world_size, rank = world(self.trainer)
        train, where, balanced = self.splits["train"], partial(position, self.trainer), None
        if self.class_balance > 0:
            balanced = BalancedOrder(train.labels.cpu(), self.batch_size, self.seed, self.class_balance)
        sampler = TrainingSampler(
            len(train), self.batch_size, self.seed, where, world_size, rank, overfits(self.trainer), balanced
        )
        return self._loader(self._served("train"), sampler, self.workers())

    def val_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the validation set, always in the same shuffled order."""
        return self._evaluation_loader("val")

    def test_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the test set, always in the same shuffled order."""
        return self._evaluation_loader("test")

    def predict_dataloader(self) -> DataLoader[ImageBatch]:
        """Loads the test set in the same order, each image on one process alone."""
        return self._evaluation_loader("test", once=True)

    def _evaluation_loader(self, split: str, once: bool = False) -> DataLoader[ImageBatch]:
        # not by the seed of the run: runs that differ in it alone are measured on the same first batches
        sampler = EvaluationSampler(len(self.splits[split]), self.split_seed, *world(self.trainer), once)
        self._repeats[split] = sampler.repeated
        return self._loader(self._served(split), sampler, self.workers(split))

    def _loader(self, dataset: Any, sampler: Sampler[int], wanted: int) -> DataLoader[ImageBatch]:
        batch_size = max(1, self.batch_size // world(self.trainer)[0])
        batch_bytes = 0 if isinstance(dataset, WithoutImages) else batch_size * 3 * self.preprocessing["crop"] ** 2
        workers, note = plan_workers(wanted, self.prefetch_factor, batch_bytes, devices(self.trainer))
        if self.trainer is None or self.trainer.local_rank == 0:
            say_once(note)
        return LazyDataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=workers,
            collate_fn=share_batch,
            prefetch_factor=self.prefetch_factor if workers else None,
            pin_memory=self.pins_memory(),
            persistent_workers=workers > 0,
            worker_init_fn=leave_signals_to_the_run,
        )

    def _served(self, split: str) -> Any:
        """The dataset as the loader sees it."""
        dataset = self.splits[split]
        if self.device_cache or split in self._without_images:
            return WithoutImages(dataset)
        transforms = self.train_transforms if split == "train" else []
        return TransformedDataset(dataset, transforms, self.seed) if transforms else dataset

    def on_after_batch_transfer(self, batch: ImageBatch, dataloader_idx: int) -> ImageBatch:
        """Augments a training batch; in evaluation, marks what another process counts already."""
        split = split_in_use(self.trainer)
        if split in self._without_images:
            return batch
        if self.device_cache:
            batch = batch._replace(images=self._cached(split, batch.indices))
        if self.trainer is not None and self.trainer.training:
            return self.transform_batch(self.augment(batch, self.trainer.current_epoch))
        repeated = self._repeats.get(split)
        return batch if repeated is None else uncounted(batch, repeated)

    def _cached(self, split: str, indices: Tensor) -> Tensor:
        """Images of a split that is on the device as a whole, from its first batch on."""
        dataset = self.splits[split]
        if split not in self._on_device:
            self._on_device[split] = dataset.__getitems__([*range(len(dataset))]).images.to(indices.device)
        return self._on_device[split][indices % len(dataset)]

    def augmentation(self) -> list[str]:
        """The options by which training sees an image otherwise than evaluation does."""
        on = {
            "crop_scale": getattr(self, "crop_scale", None) is not None,
            "flip": bool(self.flip),
            "crop_padding": self.crop_padding > 0,
            "cutout": self.cutout > 0,
            **{option: bool(getattr(self, option)) for option in _TRANSFORMS},
        }
        return [f"--data.{option}" for option, is_on in on.items() if is_on]

    def whole_split(self, split: str) -> DataLoader[ImageBatch]:
        """Loads a split once, in the order of its indices and without augmentation.

        Args:
            split: ``train``, ``val`` or ``test``.
        """
        order = SequentialSampler(range(len(self.splits[split])))
        return self._loader(self.splits[split], order, self._image_workers(split))

    def serve_indices(self, splits: Collection[str]) -> None:
        """Lets the loaders of some splits yield labels and indices alone, up to the next ``setup``.

        Args:
            splits: Those of which the model needs no images in this stage.
        """
        self._without_images = splits

    def augment(self, batch: ImageBatch, epoch: int) -> ImageBatch:
        """Augments a batch as training does in that epoch."""
        side = min(batch.images.shape[-2:])  # transforms may have changed it
        require(
            self.crop_padding < side, "--data.crop_padding", self.crop_padding, f"below {side}, the side of an image"
        )
        return augment(
            batch,
            seed=self.seed,
            epoch=epoch,
            flipping=self.flip,
            padding=self.crop_padding,
            cutout_size=self.cutout,
            fill=as_colour(tuple(self.preprocessing["mean"]), batch.images.device),
        )

    def transform_batch(self, batch: ImageBatch) -> ImageBatch:
        """Applies ``batch_transforms`` to an augmented training batch; a subclass may do something else.

        They draw by (seed, epoch, batch), the same on all devices. Labels may become soft, float (N, classes).

        Args:
            batch: The batch, on the device.
        """
        if not self.batch_transforms:
            return batch
        seed = derived_seed(Purpose.BATCH_TRANSFORMS, self.seed, *position(self.trainer))
        return transform_batch(batch, self.batch_transforms, len(self.class_names), seed)

    def pins_memory(self) -> bool:
        """Whether batches are put where a GPU can fetch them by itself."""
        if self.pin_memory is not None:
            return self.pin_memory
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def workers(self, split: str = "train") -> int:
        """How many processes load images for this device."""
        return 0 if split in self._without_images else self._image_workers(split)

    def _image_workers(self, split: str) -> int:
        at_hand = self.in_memory and not (split == "train" and self.train_transforms)
        if self.num_workers is not None or at_hand:
            return self.num_workers or 0
        return min(8, max(1, usable_cores() // devices(self.trainer) - 1))
