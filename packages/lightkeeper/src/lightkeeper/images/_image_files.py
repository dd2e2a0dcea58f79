"""The data module of image files: finds, splits, checks and reads them."""

import os
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast
from unicodedata import normalize

import numpy as np
import torch
from jsonargparse.typing import PositiveInt
from numpy.typing import NDArray

from ..exact._errors import UnreadableFileError, UserError, listed, note, printable, require
from ._batch import digest_of
from ._check import check_files, survey
from ._files import FileDataset, ImageCache, mean_and_std
from ._layout import ImageFile, Listing, alternatives, class_order, list_folder
from ._preprocessing import Preprocessing
from ._resized import ResizedDataModule
from ._scan import is_invisible, to_nfc
from ._splits import SPLITS, grouped_split
from ._table import Table

_SPLITS = ("all", *SPLITS)
_LEFT_OUT = "left out"


class ImageFilesDataModule(ResizedDataModule):
    """Image files; a subclass finds the files of each class and split.

    Args:
        on_bad_image: Refuses to start if a file cannot be read as an image, or skips the file.
        cache: A folder for decoded images, which makes later epochs faster. It takes about 0.2 MB
            an image, and training crops from images whose shorter side is 8/7 of ``train_size``, or
            ``train_size`` if ``fit`` is not ``crop``.
        group: Finds a file's group, such as ``patient[0-9]+``, which stays in one split. A regular
            expression, searched in the path below the root; or the name of a table's column.
        label_from: Finds a file's class, such as ``([a-z]+)_[0-9]+`` of ``pug_12.jpg``. A regular
            expression, searched likewise, in place of folders of classes or a column.
        folds: Cross-validates: the test set is one of that many parts of the images. Over all
            folds, each image is tested once.
        fold: The part, from 1.
        train_fraction: The share of the training images to train on, about. A smaller share is part
            of a larger one; the other splits stay as they are.
        channels: Takes images as they are stored, with that many channels; by default they become
            8-bit RGB.
        bits: The bits of each of these channels: 8, the default, or 16.
        class_names: Advanced: The names of the classes in the order of their labels; by default
            sorted, numbers by their value. Numbers in a table get these names, in their order.
        kwargs: See ``ResizedDataModule``.

    Attributes:
        layout: How the folder or table was understood, in one line; known after ``files``.
    """

    table: Table | None = None

    def __init__(
        self,
        on_bad_image: Literal["error", "skip"] = "error",
        cache: str | None = None,
        group: str | None = None,
        label_from: str | None = None,
        folds: PositiveInt | None = None,
        fold: PositiveInt = 1,
        train_fraction: float = 1.0,
        channels: PositiveInt | None = None,
        bits: Literal[8, 16] | None = None,
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.channels = channels or 3
        self.bands = (channels, bits or 8) if channels else None
        super().__init__(**kwargs)
        require(bool(channels) or bits is None, "bits", bits, "given with channels")
        require(
            not channels or cache is None,
            "cache",
            cache,
            "left out with channels: it keeps RGB",
        )
        require(folds != 1, "folds", folds, "at least 2")
        require(fold <= (folds or 1), "fold", fold, f"at most folds, {folds or 1}")
        if folds is not None:
            self.fractions["test"] = 1 / folds
        self.group = group
        self.label_from = label_from
        self.folds = folds
        self.fold = fold
        require(0 < train_fraction <= 1, "train_fraction", train_fraction, "in (0, 1]")
        self.train_fraction = train_fraction
        self.skip_bad = on_bad_image == "skip"
        self.cache = Path(cache).expanduser() if cache is not None else None
        self.expected_classes = [*(class_names or ())]
        self._expected_by: object = "class_names"
        self._files: list[ImageFile] = []
        self._rows: NDArray[np.void] | None = None

    @property
    @abstractmethod
    def source(self) -> Path:
        """The folder or file that the check of data takes for these files."""

    @property
    def images_root(self) -> Path:
        """The folder that the files lie in, or that paths in the table are relative to."""
        return self.source if self.table is None else self.table.root

    def open_table(self, file: Path, root: str | None, **columns: str | None) -> None:
        """Opens a table of the files; ``root`` and the options of columns may be None."""
        self.table = Table(
            file,
            Path(root).expanduser() if root is not None else None,
            columns,
            self.group,
            self.label_from,
            self.bands,
            self.expected_classes,
        )

    def list_files(self) -> Listing:
        """Lists the files of the table or the folder; override it to find them in another way."""
        if self.table is not None:
            return self.table.list_files()
        return list_folder(
            self.images_root, self.bands, self.expected_classes, self.label_from, self.group
        )

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their labels."""
        return self.expected_classes or [*dict.fromkeys(file.label for file in self.files())]

    def expect_classes(self, names: Sequence[str], source: object) -> None:
        """Labels images by the classes of a checkpoint, of which some may not occur."""
        self.expected_classes = [*names]
        self._expected_by = source
        self._forget()

    def test_on_all(self) -> None:
        """Lets a test measure all images together, of data that nothing was trained on."""
        self.test_split = "all"
        self._forget()

    def _forget(self) -> None:
        self._files = []
        self._rows = None
        self._digests = {}
        self.splits = {}

    @property
    def preprocessing(self) -> Preprocessing:
        """With ``channels``, mean and deviation are those of the training images by default."""
        if self.bands is None:
            return super().preprocessing
        if not (self.mean and self.std):
            paths = [file.path for file in self.files() if file.split == "train"]
            self.mean, self.std = mean_and_std(paths, self.bands)
            self.hparams.update(mean=self.mean, std=self.std)  # a checkpoint remembers them
        return {**super().preprocessing, "bits": self.bands[1]}

    def files(self) -> list[ImageFile]:
        """The image files in the order of splits, classes and names, until they are loaded."""
        if not self._files:
            try:
                self._files = self._arranged(*self.list_files())
            except UserError as error:
                error.message += alternatives(self.source)
                raise
        return self._files

    def _arranged(self, files: Sequence[ImageFile], notes: Sequence[str]) -> list[ImageFile]:
        """Checks and sorts the classes, and cuts splits that the data itself does not have."""
        if self.test_split == "all":
            files = [file._replace(split="all") for file in files]
        names = class_order(files, self.source, self.expected_classes, self._expected_by)
        labels = {to_nfc(name): label for label, name in enumerate(names)}
        files = sorted(files, key=lambda file: labels[file.label])
        classes = {(file.split, file.label) for file in files}
        splits = [split for split in _SPLITS if split in {split for split, _ in classes}]
        notes = [f"{len(names)} {notes[0]}", *filter(None, notes[1:])]
        for split in splits:
            if empty := [name for name in names if (split, to_nfc(name)) not in classes]:
                notes.append(f"no {split} images of {listed(empty, 3)}")
        keys = [
            "".join(c for c in normalize("NFKC", name).casefold() if not is_invisible(c))
            for name in names
        ]
        counts = Counter(keys)
        if alike := [name for name, key in zip(names, keys, strict=True) if counts[key] > 1]:
            notes.append(
                f"{listed(alike, 4)} differ in case, width, spaces or invisible characters alone"
            )
        if self.group is not None:
            _require_whole_groups(files)
            count = len({file.group for file in files})
            notes.append(f"{count:,} groups, each in one split")
        if self.folds is not None and "test" in splits:
            raise UserError(
                f"each fold cuts a test set, but '{self.source}' has one already", "folds"
            )
        fractions = {split: share for split, share in self.fractions.items() if split not in splits}
        if fractions and len(splits) > 1:
            notes.append(f"{listed(fractions)} cut from train")
        if self.train_fraction < 1:  # behind the others, so that these stay as they are
            fractions[_LEFT_OUT] = (1 - sum(fractions.values())) * (1 - self.train_fraction)
        train = [file for file in files if file.split == "train"]
        cut = grouped_split(
            [file.label for file in train],
            [file.group for file in train],
            fractions,
            self.split_seed,
            self.fold,
            self.folds or 1,
        )
        train = [file._replace(split=split) for file, split in zip(train, cut, strict=True)]
        others = [file for file in files if file.split != "train"]
        if left_out := sum(file.split == _LEFT_OUT for file in train):
            count = sum(file.split == "train" for file in train)
            notes.append(f"trains on {count:,} of {count + left_out:,} images")
        self.layout = "; ".join(notes)
        kept = [file for file in train + others if file.split != _LEFT_OUT]
        return sorted(kept, key=lambda file: _SPLITS.index(file.split))

    def survey(self) -> dict[str, Any]:
        """Describes the images for JSON: classes, unreadable files, duplicates, sizes, formats."""
        return survey(self.images_root, self.files(), self.bands)

    def split_sizes(self) -> dict[str, int]:
        """The number of images in each split, or of files once they are there and listed."""
        if self.splits or not self.images_root.is_dir():
            return super().split_sizes()
        return dict(Counter(file.split for file in self.files()))

    def prepare_data(self) -> None:
        """Checks every file once before training starts, on one process a machine."""
        if not self.splits:
            self._checked_files()

    def _checked_files(self) -> tuple[list[ImageFile], NDArray[np.void]]:
        """Returns the readable files, and the rows of :func:`check_files` about them."""
        if self._rows is None:
            paths = [file.path for file in self.files()]
            broken, rows = check_files(paths, self.images_root, self.bands)
            if broken:
                self._files = self._without(broken)
            self._rows = rows[rows["length"] >= 0]
        return self._files, self._rows

    def digests(self) -> dict[str, str]:
        """Hashes the names, labels and lengths of each split's files, in their order."""
        self._digests = self._digests or _digests_of(*self._checked_files())
        return self._digests

    def load(self) -> dict[str, FileDataset]:
        """Opens the splits, of the files that the first process has listed and checked."""
        # another process might find other files
        listing = self._checked_files() if self.world[1] == 0 else None
        if self.trainer is not None:
            listing = self.trainer.strategy.broadcast(listing)
        files, rows = cast("tuple[list[ImageFile], NDArray[np.void]]", listing)
        self._files = files
        self.expected_classes = self.class_names
        labels = {to_nfc(name): label for label, name in enumerate(self.class_names)}
        datasets = {}
        for split in dict.fromkeys(file.split for file in files):
            places = [place for place, file in enumerate(files) if file.split == split]
            is_training = split == "train"
            scale = self.crop_scale if is_training else None
            steps = self.train_preprocessing if is_training else [self.preprocessing]
            cache = (
                ImageCache(self.cache, rows[places], steps[0], scale is not None)
                if self.cache is not None
                else None
            )
            datasets[split] = FileDataset(
                [files[place].path for place in places],
                torch.tensor([labels[files[place].label] for place in places]),
                self.preprocessing,
                scale,
                self.seed,
                cache=cache,
                train_preprocessing=steps,
            )
        self._forget()  # the datasets have the files in few bytes
        self._digests = _digests_of(files, rows)
        return datasets

    def _without(self, broken: Mapping[str, str]) -> list[ImageFile]:
        """Returns the files without broken ones, which are an error or skipped.

        Each split and each training class must keep some.
        """
        files = self.files()
        examples = listed((f"'{path}' ({why})" for path, why in sorted(broken.items())), 3)
        text = f"{len(broken):,} of {len(files):,} files cannot be read as images"
        if not self.skip_bad:
            raise UnreadableFileError(
                f"{text}: {examples}; repair or remove such files, or set on_bad_image to skip"
            )
        if self.world[1] == 0:
            note(f"warning: {text} and are left out: {examples}")
        readable = [file for file in files if file.path not in broken]
        classes = {(file.split, file.label) for file in readable}
        splits = {split for split, _ in classes}
        for split, label in sorted({(file.split, file.label) for file in files} - classes):
            if split == "train" or split not in splits:
                raise UserError(f"no {split} image of class '{label}' can be read: {examples}")
        return readable


def _digests_of(files: Sequence[ImageFile], rows: NDArray[np.void]) -> dict[str, str]:
    """Hashes what tells files apart wherever they lie: their names, not their folders'."""
    lines = defaultdict[str, list[str]](list)
    for file, length in zip(files, rows["length"].tolist(), strict=True):
        name = to_nfc(os.path.basename(file.path))
        lines[file.split].append(f"{name}/{file.label}/{length}")
    return {split: digest_of(of_split) for split, of_split in lines.items()}


def _require_whole_groups(files: Sequence[ImageFile]) -> None:
    """Refuses groups of which the data's own splits have a part each."""
    split_of = {file.group: file.split for file in files}
    for file in files:
        if file.split != split_of[file.group]:
            splits = listed(sorted([file.split, split_of[file.group]]))
            raise UserError(f"'{printable(file.group)}' has images in {splits}", "group")
