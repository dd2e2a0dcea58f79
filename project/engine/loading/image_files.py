"""The base of data modules of image files: checks the files before training, reads them, and can skip broken ones."""

import re
import shlex
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib.recfunctions import structured_to_unstructured
from numpy.typing import NDArray
from tqdm import tqdm

from ..errors import (
    UnreadableFileError,
    UserError,
    first_of_machine,
    listed,
    printable,
    require,
)
from ..number_types import OpenUnitInterval, PositiveInt, ShareAboveZero
from ..preprocessing import Fit, Interpolation, Preprocessing
from .batch import BatchDataset, ImageBatch
from .check import check_files, few, leave_out
from .data_module import ImageDataModule
from .files import FileDataset, mean_and_std
from .paths import ClassFiles, Paths, joined
from .scan import spelt
from .share import once_a_machine
from .splits import SPLITS, cut_classes, cut_groups

_PACKAGE = __name__.partition(".")[0]
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class ResizedDataModule(ImageDataModule):
    """Images of any size, resized in loader workers.

    Args:
        image_size: The size in pixels of the square that the network sees, by default 224. Pretrained weights bring
            their own, with ``resize``, ``interpolation``, ``mean`` and ``std``.
        fit: Makes an image square. ``crop``, the default, resizes the shorter side to ``resize`` and crops the centre;
            ``pad`` resizes the longer side and adds bars of the mean colour; ``squash`` resizes both sides, which changes
            the aspect ratio. Training does the same to random crops.
        resize: Advanced: The length in pixels that the shorter side is scaled to before, by default 8/7 of ``image_size``.
        interpolation: Advanced: Scales images, always with antialiasing: ``bilinear``, the default, or ``bicubic``.
        crop_scale: The smallest and largest share of an image that a random crop in training keeps; null takes whole
            images, as evaluation does.
        val_fraction: About the share of each class that becomes validation data, if the data have no validation set.
        test_fraction: About the share of each class that becomes test data, if the data have no test set.
        kwargs: See ``ImageDataModule``.
    """

    in_memory = False

    def __init__(
        self,
        image_size: int | None = None,
        fit: Fit | None = None,
        resize: int | None = None,
        interpolation: Interpolation | None = None,
        crop_scale: tuple[ShareAboveZero, ShareAboveZero] | None = (0.08, 1.0),
        val_fraction: OpenUnitInterval = 0.1,
        test_fraction: OpenUnitInterval = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.image_size = 224 if image_size is None else image_size
        require(self.image_size >= 8, "--data.image_size", image_size, "at least 8")
        self.resize = self.image_size * 8 // 7 if resize is None else resize
        require(
            self.resize >= self.image_size,
            "--data.resize",
            resize,
            f"at least {self.image_size}, the image size",
        )
        self.fit: Fit = fit or "crop"
        self.interpolation: Interpolation = interpolation or "bilinear"
        if crop_scale is not None and crop_scale[0] > crop_scale[1]:
            raise UserError(
                f"--data.crop_scale must be two shares, as in [0.08, 1], got {list(crop_scale)}"
            )
        if val_fraction + test_fraction >= 1:
            raise UserError(
                "--data.val_fraction and --data.test_fraction must leave something to train on"
            )
        self.crop_scale = crop_scale
        # the test set first, so that it does not depend on the share of the validation set
        self.fractions = {"test": test_fraction, "val": val_fraction}

    @property
    def preprocessing(self) -> Preprocessing:
        """The options above, with ImageNet's statistics unless others are given."""
        return {
            "resize": self.resize if self.fit == "crop" else self.image_size,
            "crop": self.image_size,
            "fit": self.fit,
            "interpolation": self.interpolation,
            "mean": self.mean or IMAGENET_MEAN,
            "std": self.std or IMAGENET_STD,
        }


class ImageFilesDataModule(ResizedDataModule):
    """Image files; a subclass finds the files of each class and split.

    Args:
        on_bad_image: Ends the run where a file cannot be read as an image, or skips the file.
        cache: A folder for decoded images, by which later epochs and runs are faster; it takes about 0.2 MB an image,
            and training crops from images whose shorter side is 8/7 of ``image_size``, or ``image_size`` where ``fit``
            is not ``crop``. By default images are decoded each time.
        group: Keeps images that belong together, as those of one patient, in one split: a regular expression that finds
            the group's name in a file's path below the root, such as ``patient[0-9]+``; of a CSV, the name of a column.
        folds: Cross-validates: the test set is one of that many parts, so that over all folds each image is tested once.
        fold: The part, from 1.
        channels: Takes images as they are stored, with that many channels; by default they become 8-bit RGB.
        bits: The bits of each of these channels: 8, the default, or 16.
        kwargs: See ``ResizedDataModule``.

    Attributes:
        tests_all: Puts all images into the test set, for some that nothing was trained on.
    """

    def __init__(
        self,
        on_bad_image: Literal["error", "skip"] = "error",
        cache: str | None = None,
        group: str | None = None,
        folds: PositiveInt | None = None,
        fold: PositiveInt = 1,
        channels: PositiveInt | None = None,
        bits: Literal[8, 16] | None = None,
        **kwargs: Any,
    ) -> None:
        self.channels, self.bands = channels or 3, (channels, bits or 8) if channels else None
        super().__init__(**kwargs)
        require(bool(channels) or bits is None, "--data.bits", bits, "given with --data.channels")
        require(
            not channels or cache is None,
            "--data.cache",
            cache,
            "left out with --data.channels: it keeps RGB",
        )
        self.group, self.folds, self.fold = group, folds, fold
        if folds is None:
            require(fold == 1, "--data.fold", fold, "given with --data.folds")
        else:
            require(folds >= 2, "--data.folds", folds, "at least 2")
            require(1 <= fold <= folds, "--data.fold", fold, f"from 1 to {folds}")
            self.fractions["test"] = 1 / folds
            require(
                sum(self.fractions.values()) < 1,
                "--data.val_fraction",
                self.fractions["val"],
                f"below 1 - 1/{folds}",
            )
        self.skip_bad = on_bad_image == "skip"
        self.cache = Path(cache).expanduser() if cache is not None else None
        self.tests_all = False
        self._files: dict[str, ClassFiles] = {}
        self._defects: dict[str, str] | None = None
        self._facts: NDArray[Any] | None = None
        self._reported: set[Path] = set()

    @property
    @abstractmethod
    def source(self) -> Path:
        """The folder or file that the check of data takes for these files."""

    @property
    def images_root(self) -> Path:
        """The folder that the files lie in."""
        return self.source

    @abstractmethod
    def find(self) -> Mapping[str, Mapping[str, Paths]]:
        """Finds the files of each class in each split."""

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, sorted."""
        names: list[str] = []
        if not self._lists():
            with suppress(OSError):  # files() explains it
                names = self.find_class_names()
        return names or list(self.files()["train"])

    def find_class_names(self) -> list[str]:
        """Finds the classes without listing the files, for processes that the first of their machine hands its list."""
        return []

    def _lists(self) -> bool:
        """Returns True if this process has the list of files, or is the one of its machine that makes it."""
        return bool(self._files) or first_of_machine()

    @property
    def preprocessing(self) -> Preprocessing:
        """With ``channels``, mean and deviation are those of the training images, unless others are given."""
        if self.bands is None:
            return super().preprocessing
        if not (
            self.mean and self.std
        ):  # by each process, as the model is built before processes can communicate
            self.mean, self.std = mean_and_std(self.files()["train"].paths, self.bands)
            self.hparams.update(mean=self.mean, std=self.std)  # a checkpoint remembers them
        return {**super().preprocessing, "bits": self.bands[1]}

    def files(self) -> dict[str, ClassFiles]:
        """The image files of each split, found and split once."""
        if not self._files:
            try:
                found = self.find()
            except OSError as error:
                raise UserError(
                    f"--data.root: '{error.filename}' cannot be read ({error.strerror})"
                ) from error
            for group, splits in (
                self.splits_of_groups(found).items() if self.group is not None else ()
            ):
                if len(splits) > 1:
                    raise UserError(
                        f"--data.group: '{printable(group)}' has images in {listed(sorted(splits))}"
                    )
            self._files = {split: ClassFiles(found[split]) for split in SPLITS}
        return self._files

    def expected_sizes(self) -> dict[str, int]:
        """The number of files in each split, once they are there and listed."""
        found = self.files() if self._lists() and self.images_root.is_dir() else {}
        return {split: len(classes.paths) for split, classes in found.items()}

    def cut(
        self, train: Mapping[str, Paths], root: Path, given: Sequence[str]
    ) -> dict[str, dict[str, Paths]]:
        """Cuts the splits that are not given from the training files, by their names below ``root`` or their groups."""
        fractions = {split: share for split, share in self.fractions.items() if split not in given}
        if self.folds is not None and "test" in given:
            raise UserError(
                f"--data.folds cuts a test set in each fold, but '{self.source}' has one already"
            )
        key, below = (spelt, root) if self.group is None else (self.group_of, self.images_root)
        keys = {name: map(key, files.strings(below)) for name, files in train.items()}
        if self.group is None and self.folds is None:
            parts = cut_classes(keys, fractions, self.split_seed)
        else:
            groups = {name: [*of_class] for name, of_class in keys.items()}
            parts = cut_groups(groups, fractions, self.split_seed, self.fold, self.folds or 1)
        return {
            split: {name: train[name].take(places) for name, places in classes.items()}
            for split, classes in parts.items()
        }

    def group_of(self, path: str) -> str:
        """The name of a file's group, by the regular expression: its first parenthesis, or all that it matches."""
        try:
            found = re.search(str(self.group), path)
        except re.error as error:
            raise UserError(
                f"--data.group: '{self.group}' is no regular expression ({error})"
            ) from error
        if found is None:
            raise UserError(f"--data.group: '{self.group}' finds nothing in '{printable(path)}'")
        return spelt(found[min(1, found.re.groups)] or "")

    def splits_of_groups(self, files: Mapping[str, Mapping[str, Paths]]) -> dict[str, set[str]]:
        """The splits in which each group has images."""
        found: dict[str, set[str]] = {}
        for split, classes in files.items():
            for path in chain.from_iterable(
                files.strings(self.images_root) for files in classes.values()
            ):
                found.setdefault(self.group_of(path), set()).add(split)
        return found

    def prepare_data(self) -> None:
        """Checks every file once before training starts, on one process a machine."""
        self._check()
        if not self.skip_bad:
            self._readable()

    def _check(self) -> None:
        if self._defects is None:
            files = joined(classes.paths for classes in self.files().values())
            self._defects, found = check_files(
                files, self.images_root, self.bands, sizes=self.cache is not None
            )
            if self.cache is not None:
                self._facts = np.empty((int(files.rows.max()) + 1, 4), np.int64)
                self._facts[files.rows] = structured_to_unstructured(
                    found[["length", "changed", "width", "height"]]
                )

    def load(self) -> dict[str, BatchDataset]:
        """Opens the three splits, of the files that the first process of this machine has listed."""
        splits = self._files = once_a_machine(self.files, self.trainer)
        if self.skip_bad or self.cache is not None:
            if self.world[1] == 0:
                self._check()
            if (
                self.trainer is not None and self.trainer.world_size > 1
            ):  # or each would leave out other files
                self._defects, self._facts = self.trainer.strategy.broadcast(
                    (self._defects, self._facts)
                )
            splits = self._readable()
        if self.tests_all:
            every = {
                name: joined(splits[split][name] for split in SPLITS) for name in self.class_names
            }
            splits = splits | {"test": ClassFiles(every)}
        return {split: self._dataset(split, splits[split]) for split in SPLITS}

    def _dataset(self, split: str, classes: ClassFiles) -> FileDataset:
        if self.class_names != [*classes]:  # a subclass may have an order of its own
            classes = ClassFiles({name: classes[name] for name in self.class_names})
        files, counts = classes.paths, torch.tensor([*classes.counts.values()])
        labels = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(counts)
        crop_scale = self.crop_scale if split == "train" else None
        facts = self._facts[files.rows] if self._facts is not None else None
        dataset = FileDataset(
            files,
            labels,
            self.preprocessing,
            crop_scale,
            self.seed,
            self.skip_bad,
            self.cache,
            facts,
        )
        if self.cache is not None and dataset.cache is None and self.world[1] == 0:
            _warn(
                f"--data.cache: '{self.cache}' has no room for the decoded {split} images; going on without"
            )
        return dataset

    def _readable(self) -> dict[str, ClassFiles]:
        """The files of each split without broken ones, which are an error unless they are to be skipped."""
        broken = dict(sorted((self._defects or {}).items()))
        if not broken:
            return self.files()
        text = f"{len(broken):,} of {sum(self.expected_sizes().values()):,} files cannot be read as images"
        if not self.skip_bad:
            raise UnreadableFileError(
                f"{text}: {few(broken)}; repair or remove such files, or skip them with --data.on_bad_image skip;"
                f" python -m {_PACKAGE}.check_data {shlex.quote(str(self.source))} lists all that is wrong"
            )
        if self.world[1] == 0:
            _warn(f"{text} and are left out: {few(broken)}")
        return leave_out(self.files(), broken)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Takes what could not be read out of a training batch; in evaluation, its label of -1 keeps it from counting."""
        if not self.skip_bad or not isinstance(
            batch, ImageBatch
        ):  # such as a model's example_input_array
            return batch
        readable, split = batch.labels >= 0, self.split_in_use
        if self.trainer is None or readable.all():
            return batch
        dataset: Any = self.splits[split]
        for index in batch.indices[~readable].tolist():
            if (file := dataset.files[index % len(dataset)]) not in self._reported:
                self._reported.add(file)
                _warn(
                    f"'{printable(file)}' cannot be read as an image and is left out ({len(self._reported)} so far)"
                )
        if split != "train":
            return batch
        if not readable.any():
            raise UnreadableFileError(
                f"no image of a training batch of {len(readable)} can be read; is '{self.images_root}' still there?"
            )
        return ImageBatch(*(field[readable] for field in batch))


def _warn(text: str) -> None:
    """Prints a warning beside a progress bar, if there is one."""
    tqdm.write(f"warning: {text}", file=sys.stderr)
