"""The data module of image files: finds, splits, checks and reads them."""

import sys
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
from jsonargparse.typing import PositiveInt
from numpy.typing import NDArray
from tqdm import tqdm

from ..errors import UnreadableFileError, UserError, listed, printable, require
from ..preprocessing import Preprocessing
from .batch import ImageBatch
from .cache import cached_images
from .check import ROW, check_files, few, leave_out
from .files import FileDataset, mean_and_std
from .layout import FoundFiles, class_order, list_folder
from .paths import ClassFiles, Paths, joined
from .resized import ResizedDataModule
from .scan import spelt
from .splits import SPLITS, cut_classes, cut_groups, group_name
from .table import Table

T = TypeVar("T")


class ImageFilesDataModule(ResizedDataModule):
    """Image files; a subclass finds the files of each class and split.

    Args:
        on_bad_image: Ends the run if a file cannot be read as an image, or skips the file.
        cache: A folder for decoded images, which makes later epochs faster. It takes about 0.2 MB
            an image, and training crops from images whose shorter side is 8/7 of ``image_size``, or
            ``image_size`` if ``fit`` is not ``crop``.
        group: Finds a file's group, such as ``patient[0-9]+``, which stays in one split. A regular
            expression, searched in the path below the root; or the name of a table's column.
        label_from: Finds a file's class, such as ``([a-z]+)_[0-9]+`` of ``pug_12.jpg``. A regular
            expression, searched likewise, in place of folders of classes or a column.
        folds: Cross-validates: the test set is one of that many parts of the images. Over all
            folds, each image is tested once.
        fold: The part, from 1.
        channels: Takes images as they are stored, with that many channels; by default they become
            8-bit RGB.
        bits: The bits of each of these channels: 8, the default, or 16.
        class_names: Advanced: The names of the classes in the order of their labels; by default
            sorted, numbers by their value.
        kwargs: See ``ResizedDataModule``.

    Attributes:
        layout: How the folder or table was understood, in one line; known after ``files``.
    """

    def __init__(
        self,
        on_bad_image: Literal["error", "skip"] = "error",
        cache: str | None = None,
        group: str | None = None,
        label_from: str | None = None,
        folds: PositiveInt | None = None,
        fold: PositiveInt = 1,
        channels: PositiveInt | None = None,
        bits: Literal[8, 16] | None = None,
        class_names: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.channels = channels or 3
        self.bands = (channels, bits or 8) if channels else None
        super().__init__(**kwargs)
        require(bool(channels) or bits is None, "--data.bits", bits, "given with --data.channels")
        rgb = "left out with --data.channels: it keeps RGB"
        require(not channels or cache is None, "--data.cache", cache, rgb)
        require(folds != 1, "--data.folds", folds, "at least 2")
        require(fold <= (folds or 1), "--data.fold", fold, f"at most --data.folds, {folds or 1}")
        if folds is not None:
            self.fractions["test"] = 1 / folds
        self.group = group
        self.label_from = label_from
        self.folds = folds
        self.fold = fold
        self.skip_bad = on_bad_image == "skip"
        self.cache = Path(cache).expanduser() if cache is not None else None
        self.expected_classes = [*(class_names or ())]
        self._expected_by: object = "--data.class_names"
        self._files: dict[str, ClassFiles] = {}
        self._table: Table | None = None
        self._groups: Mapping[str, str] = {}
        self._checked: tuple[dict[str, str], NDArray[np.void]] | None = None
        self._reported: set[Path] = set()

    @property
    @abstractmethod
    def source(self) -> Path:
        """The folder or file that the check of data takes for these files."""

    @property
    def images_root(self) -> Path:
        """The folder that the files lie in."""
        return self.source

    def read_from_table(
        self,
        file: Path,
        root: Path | None = None,
        columns: Mapping[str, str | None] | None = None,
    ) -> Path:
        """Lists files from a table instead of folders; returns the folder that they lie in.

        See :class:`..loading.table.Table` for the arguments.
        """
        options = self.group, self.label_from, self.bands
        self._table = Table(file, root, columns, *options)
        return self._table.root

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their labels."""
        return self.expected_classes or [*next(iter(self.files().values()))]

    def expect_classes(self, names: Sequence[str], source: object) -> None:
        """Labels images by the classes of a checkpoint, of which some may not occur."""
        self.expected_classes = [*names]
        self._expected_by = source
        self._files = {}
        self.splits = {}

    def test_on(self, split: str) -> None:
        """Tests on another split, or on ``all`` images of data that nothing was trained on."""
        if "all" in (split, self.test_split):
            self._files = {}
            self.splits = {}
        super().test_on(split)

    @property
    def preprocessing(self) -> Preprocessing:
        """With ``channels``, mean and deviation are those of the training images by default."""
        if self.bands is None:
            return super().preprocessing
        if not (self.mean and self.std):
            self.mean, self.std = mean_and_std(self.files()["train"].paths, self.bands)
            self.hparams.update(mean=self.mean, std=self.std)  # a checkpoint remembers them
        return {**super().preprocessing, "bits": self.bands[1]}

    def files(self) -> dict[str, ClassFiles]:
        """The image files of each split, listed and split once."""
        if not self._files:
            files = (
                self._table.list_files()
                if self._table is not None
                else list_folder(
                    self.images_root, self.bands, self.expected_classes, self.label_from
                )
            )
            self._groups = files.groups
            self._files = self._split(files)
        return self._files

    def _split(self, listing: FoundFiles) -> dict[str, ClassFiles]:
        """Aligns the classes of all splits, and cuts splits that the data itself does not have."""
        if not listing.splits:
            raise UserError(f"'{printable(self.source)}' names no image")
        parts: Mapping[str, Mapping[str, Paths]] = listing.splits
        if self.test_split == "all":
            of_classes = defaultdict[str, list[Paths]](list)
            for name, files in chain.from_iterable(map(dict.items, listing.splits.values())):
                of_classes[name].append(files)
            parts = {"all": {name: joined(files) for name, files in of_classes.items()}}
        names = class_order(parts, self.source, self.expected_classes, self._expected_by)
        no_files = Paths.of([], self.images_root)
        splits = {
            split: {name: classes.get(spelt(name), no_files) for name in names}
            for split, classes in parts.items()
        }
        notes = [f"{len(names)} {listing.layout[0]}", *filter(None, listing.layout[1:])]
        for split, classes in splits.items():
            if empty := [name for name, files in classes.items() if not files]:
                notes.append(f"no {split} images of {listed(empty, 3)}")
        groups = self.splits_of_groups(splits) if self.group is not None else {}
        for group, of_group in groups.items():
            if len(of_group) > 1:
                raise UserError(
                    f"--data.group: '{printable(group)}' has images in {listed(sorted(of_group))}"
                )
        self.layout = "; ".join(notes)
        if "train" in splits:
            splits |= self.cut(splits["train"], listing.root, splits)
        return {split: ClassFiles(splits[split]) for split in ("all", *SPLITS) if split in splits}

    def split_sizes(self) -> dict[str, int]:
        """The number of images in each split, or of files once they are there and listed."""
        if self.splits or not self.images_root.is_dir():
            return super().split_sizes()
        return {split: len(classes.paths) for split, classes in self.files().items()}

    def cut(
        self, train: Mapping[str, Paths], root: Path, others: Collection[str]
    ) -> dict[str, dict[str, Paths]]:
        """Cuts splits off the training files, by their names or groups, except ``others``."""
        fractions = {split: share for split, share in self.fractions.items() if split not in others}
        if self.folds is not None and "test" in others:
            raise UserError(
                f"--data.folds cuts a test set in each fold, but '{self.source}' has one already"
            )
        key, below = (spelt, root) if self.group is None else (self.group_of, self.images_root)
        keys = {name: map(key, files.strings(below)) for name, files in train.items() if files}
        if self.group is None and self.folds is None:
            parts = cut_classes(keys, fractions, self.split_seed)
        else:
            groups = {name: [*of_class] for name, of_class in keys.items()}
            parts = cut_groups(groups, fractions, self.split_seed, self.fold, self.folds or 1)
        return {
            split: {name: files.take(classes.get(name, [])) for name, files in train.items()}
            for split, classes in parts.items()
        }

    def group_of(self, path: str) -> str:
        """The name of a file's group: from its table, or what the regular expression finds."""
        if self._groups:
            return self._groups[path]
        return group_name(str(self.group), path)

    def splits_of_groups(self, files: Mapping[str, Mapping[str, Paths]]) -> dict[str, set[str]]:
        """The splits in which each group has images."""
        splits = defaultdict[str, set[str]](set)
        for split, classes in files.items():
            for path in joined(classes.values()).strings(self.images_root):
                splits[self.group_of(path)].add(split)
        return splits

    def prepare_data(self) -> None:
        """Checks every file once before training starts, on one process a machine."""
        broken, _ = self._check()
        if not self.skip_bad:
            self._without(broken)

    def _check(self) -> tuple[dict[str, str], NDArray[np.void]]:
        """Checks the files of all splits once; see :func:`check_files`."""
        if self._checked is None:
            files = joined(classes.paths for classes in self.files().values())
            self._checked = check_files(files, self.images_root, self.bands)
        return self._checked

    def load(self) -> dict[str, FileDataset]:
        """Opens the splits, of the files that the first process has listed and checked."""
        splits = self._files = self._as_first(self.files)
        rows = np.empty(0, ROW)
        if self.skip_bad or self.cache is not None:
            broken, rows = self._as_first(self._check)
            rows = rows[rows["length"] >= 0]
            splits = self._without(broken)
        datasets = {}
        for split, classes in splits.items():
            files = classes.paths
            scale = self.crop_scale if split == "train" else None
            cache = None
            if self.cache is not None:
                of_split = rows[: len(files)]
                cache = cached_images(self.cache, of_split, self.preprocessing, scale is not None)
                rows = rows[len(files) :]
            options = self.preprocessing, scale, self.seed, self.skip_bad, cache
            datasets[split] = FileDataset(files, classes.labels, *options)
        return datasets

    def _as_first(self, make: Callable[[], T]) -> T:
        """Returns what the first process makes: other processes might find other files."""
        if self.trainer is None:
            return make()
        made = make() if self.world[1] == 0 else None
        return cast(T, self.trainer.strategy.broadcast(made))

    def _without(self, broken: Mapping[str, str]) -> dict[str, ClassFiles]:
        """Returns the files of each split without broken ones, which are an error or skipped."""
        if not broken:
            return self.files()
        count = sum(self.split_sizes().values())
        text = f"{len(broken):,} of {count:,} files cannot be read as images"
        examples = few(dict(sorted(broken.items())))
        if not self.skip_bad:
            raise UnreadableFileError(
                f"{text}: {examples}; repair or remove such files, or skip them with"
                " --data.on_bad_image skip"
            )
        if self.world[1] == 0:
            _warn(f"{text} and are left out: {examples}")
        return leave_out(self.files(), broken)

    def on_before_batch_transfer(self, batch: object, dataloader_idx: int) -> object:
        """Takes what could not be read out of a training batch; evaluation skips its label, -1."""
        if not self.skip_bad or not isinstance(batch, ImageBatch):  # as an example_input_array
            return batch
        readable = batch.labels >= 0
        dataset = cast(FileDataset, self.splits[self.split_in_use])
        for index in batch.indices[~readable].tolist():
            file = dataset.files[index % len(dataset)]
            if file not in self._reported:
                self._reported.add(file)
                _warn(f"'{printable(file)}' cannot be read as an image and is left out")
        if self.split_in_use != "train" or readable.all():
            return batch
        if not readable.any():
            raise UnreadableFileError("no image of a training batch can be read")
        return ImageBatch(*(field[readable] for field in batch))


def _warn(text: str) -> None:
    """Prints a warning beside a progress bar, if there is one."""
    tqdm.write(f"warning: {text}", file=sys.stderr)
