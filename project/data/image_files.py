"""What data modules of image files share: checking the files before training, reading them, going on without broken ones."""

import shlex
import sys
from abc import abstractmethod
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from project.data.resized import ResizedDataModule
from project.data.splits import SPLITS
from project.engine.errors import UnreadableFileError, UserError, printable
from project.engine.loading.batch import BatchDataset, ImageBatch
from project.engine.loading.checked import Header, read_headers, record_of
from project.engine.loading.checks import few, leave_out
from project.engine.loading.files import FileDataset
from project.engine.loading.listing import ClassFiles, without_garbage_collection
from project.engine.loading.trainer import split_in_use, world


class ImageFilesDataModule(ResizedDataModule):
    """Image files; a kind of data says which there are, and of which class and split.

    Args:
        on_bad_image: What to do where a file cannot be read: end the run with its name, or go on without it.
        cache: A folder for decoded images, by which later epochs and runs are faster; it takes about 0.2 MB an image,
            and training crops from images whose shorter side is 8/7 of ``image_size``, or ``image_size`` where ``fit``
            is not ``crop``. By default images are decoded each time.
        kwargs: See :class:`project.data.resized.ResizedDataModule`.

    Attributes:
        tests_all: Whether the test set has all images, for some that nothing was trained on.
    """

    def __init__(
        self, on_bad_image: Literal["error", "skip"] = "error", cache: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.skip_bad = on_bad_image == "skip"
        self.cache = Path(cache).expanduser() if cache is not None else None
        self.tests_all = False
        self._files: dict[str, ClassFiles] = {}
        self._headers: dict[str, Header] | None = None
        self._reported: set[Path] = set()

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, sorted."""
        return list(self.files()["train"])

    @property
    @abstractmethod
    def images_root(self) -> Path:
        """The folder that the files lie in."""

    @property
    def source(self) -> Path:
        """What ``project.check_data`` takes for these files."""
        return self.images_root

    @abstractmethod
    def find(self) -> dict[str, ClassFiles]:
        """Finds the files of each class in each split.

        Raises:
            UserError: There are none, or they cannot be used so.
            OSError: A file or folder cannot be read.
        """

    def prepare_data(self) -> None:
        """Looks at every file once before training starts, on one process a machine.

        Raises:
            UnreadableFileError: A file is not an image, is empty or is cut short.
        """
        if self.skip_bad:
            self._look()  # the other processes, which all leave out the same files, find what this one records
        else:
            self._require_readable()

    def _look(self) -> dict[str, Header]:
        """What is known of every file, by its path as text, which is faster to look up."""
        if self._headers is None:
            files, root = self.files(), self.images_root
            with without_garbage_collection():
                every = _all(files)
                record, visible = record_of(root, self.cache), world(self.trainer)[1] == 0
                headers = read_headers(every, root, record, sizes=self.cache is not None, visible=visible)
                self._headers = dict(zip(map(str, every), headers, strict=True))
        return self._headers

    def _broken(self) -> dict[Path, str]:
        return {Path(file): header.defect for file, header in self._look().items() if header.defect is not None}

    def _require_readable(self) -> None:
        if broken := self._broken():
            many = f"{len(broken):,} of {len(self._look()):,} files cannot be read as images: {few(broken)}"
            (first, why), *others = broken.items()
            what = many if others else f"'{printable(first)}' cannot be read as an image ({why})"
            raise UnreadableFileError(
                f"{what}; repair or remove such files, or go on without them by --data.on_bad_image skip;"
                f" python -m project.check_data {shlex.quote(str(self.source))} lists all that is wrong"
            )

    def files(self) -> dict[str, ClassFiles]:
        """The image files of each split, found and split once.

        Raises:
            UserError: The root does not exist or has no images, a class has none, or splits have different classes.
        """
        if not self._files:
            try:
                with without_garbage_collection():
                    self._files = self.find()
            except OSError as error:
                raise UserError(f"--data.root: '{error.filename}' cannot be read ({error.strerror})") from error
        return self._files

    def expected_sizes(self) -> dict[str, int]:
        """How many files there are for each split, once they are there."""
        found = self.files() if self.images_root.is_dir() else {}
        return {split: sum(map(len, classes.values())) for split, classes in found.items()}

    def load(self) -> dict[str, BatchDataset]:
        """Opens the three splits."""
        splits = self._readable() if self.skip_bad else self.files()
        if self.cache is not None and not self.skip_bad:
            self._require_readable()
        if self.tests_all:
            every = {name: [file for split in SPLITS for file in splits[split][name]] for name in self.class_names}
            splits = splits | {"test": every}
        datasets: dict[str, BatchDataset] = {}
        for split in SPLITS:
            labels = [label for label, name in enumerate(self.class_names) for _ in splits[split][name]]
            flat = [file for name in self.class_names for file in splits[split][name]]
            crop_scale = self.crop_scale if split == "train" else None
            known = [self._look()[str(file)] for file in flat] if self.cache is not None else ()
            datasets[split] = dataset = FileDataset(
                flat, torch.tensor(labels), self.preprocessing, crop_scale, self.seed, self.skip_bad, self.cache, known
            )
            if self.cache is not None and dataset.cache is None and world(self.trainer)[1] == 0:
                _warn(f"--data.cache: '{self.cache}' has no room for the decoded {split} images; going on without")
        return datasets

    def _readable(self) -> dict[str, ClassFiles]:
        """The splits without broken files; each process looks for itself, so that all have the same."""
        broken = self._broken()
        left = leave_out(self.files(), broken)
        if broken and world(self.trainer)[1] == 0:
            many = f"{len(broken):,} of {len(self._look()):,} files"
            _warn(f"{many} cannot be read as images and are left out: {few(broken)}")
        return left

    def on_before_batch_transfer(self, batch: ImageBatch, dataloader_idx: int) -> ImageBatch:
        """Takes what could not be read out of a training batch; in evaluation, its label of -1 keeps it from counting.

        Raises:
            UnreadableFileError: Nothing is left of a training batch.
        """
        if not self.skip_bad or self.trainer is None or bool((batch.labels >= 0).all()):
            return batch
        readable = batch.labels >= 0
        split = split_in_use(self.trainer)
        self._report(split, batch.indices[~readable].tolist())
        if split != "train":
            return batch
        if not readable.any():
            raise UnreadableFileError(
                f"no image of a training batch of {len(readable)} can be read; is '{self.images_root}' still there?"
            )
        return ImageBatch(*(field[readable] for field in batch))

    def _report(self, split: str, indices: list[int]) -> None:
        """Names files that could not be read, each once; other processes do not know of them."""
        dataset: Any = self.splits[split]
        for file in dict.fromkeys(dataset.files[index % len(dataset)] for index in indices):
            if file not in self._reported:
                self._reported.add(file)
                _warn(f"'{printable(file)}' cannot be read as an image and is left out ({len(self._reported)} so far)")


def _all(splits: dict[str, ClassFiles]) -> list[Path]:
    return sorted((file for classes in splits.values() for files in classes.values() for file in files), key=str)


def _warn(text: str) -> None:
    """Says it beside a progress bar, if there is one."""
    tqdm.write(f"warning: {text}", file=sys.stderr)
