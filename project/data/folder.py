"""Any folder of classes: ``root/<class>/*``, split by us, or ``root/{train,val,test}/<class>/*``, taken as they are."""

import shlex
import sys
from pathlib import Path
from typing import Any, Literal

import torch
from tqdm import tqdm

from project.data.batch import BatchDataset, ImageBatch
from project.data.checked import Header, read_headers, record_of
from project.data.checks import few, leave_out
from project.data.files import FileDataset
from project.data.listing import ClassFiles, holds_folders, list_classes, spelt, without_garbage_collection
from project.data.module import ImageDataModule
from project.data.splits import SPLITS, hashed_split
from project.errors import UnreadableFileError, UserError, printable, require
from project.run.checkpoint import Preprocessing

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class FolderDataModule(ImageDataModule):
    """Image files in a folder for each class.

    Args:
        root: Holds a folder for each class; or ``train`` and, where there are such, ``val`` and ``test``, with a folder
            for each class in each. A split that is not there is cut from the training images.
        image_size: The side in pixels of what the network sees.
        crop_scale: The smallest and largest share of an image that a random crop in training keeps.
        val_fraction: About the share of each class that becomes validation data, where we split.
        test_fraction: About the share of each class that becomes test data, where we split.
        on_bad_image: What to do where a file cannot be read: end the run with its name, or go on without it.
        cache: A folder for decoded images, by which later epochs and runs are faster; it takes about 0.2 MB an image,
            and training crops from images whose shorter side is 8/7 of ``image_size``. By default images are decoded
            each time.
        batch_size: Images in one optimizer step's forward passes on all devices together.
        kwargs: See :class:`project.data.module.ImageDataModule`.
    """

    in_memory = False

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        crop_scale: tuple[float, float] = (0.08, 1.0),
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        on_bad_image: Literal["error", "skip"] = "error",
        cache: str | None = None,
        batch_size: int = 64,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, **kwargs)
        require(image_size >= 8, "--data.image_size", image_size, "at least 8")
        if not 0 < crop_scale[0] <= crop_scale[1] <= 1:
            raise UserError(f"--data.crop_scale must be two shares, as in [0.08, 1], got {list(crop_scale)}")
        if not (val_fraction > 0 and test_fraction > 0 and val_fraction + test_fraction < 1):
            raise UserError(
                "--data.val_fraction and --data.test_fraction must be above 0 and leave something to train on, got"
                f" {val_fraction} and {test_fraction}"
            )
        self.root, self.image_size, self.crop_scale = Path(root).expanduser(), image_size, crop_scale
        self.fractions = {"val": val_fraction, "test": test_fraction}
        self.skip_bad = on_bad_image == "skip"
        self.cache = Path(cache).expanduser() if cache is not None else None
        self._files: dict[str, ClassFiles] = {}
        self._headers: dict[str, Header] | None = None
        self._reported: set[Path] = set()

    @property
    def class_names(self) -> list[str]:
        """The names of the class folders, sorted."""
        return list(self.files()["train"])

    @property
    def preprocessing(self) -> Preprocessing:
        """ImageNet's statistics, and the customary margin of 8/7 around the centre crop."""
        return {"resize": self.image_size * 8 // 7, "crop": self.image_size, "mean": IMAGENET_MEAN, "std": IMAGENET_STD}

    @property
    def images_root(self) -> Path:
        """The folder that holds the classes or the splits."""
        return self.root

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
                record, sizes, visible = record_of(root, self.cache), self.cache is not None, self._world()[1] == 0
                headers = read_headers(every, root, record, sizes, visible)
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
                f" python -m project.check_data {shlex.quote(str(self.images_root))} lists all that is wrong"
            )

    def files(self) -> dict[str, ClassFiles]:
        """The image files of each split, found and split once.

        Raises:
            UserError: The root does not exist or has no images, a class has none, or splits have different classes.
        """
        if not self._files:
            try:
                with without_garbage_collection():
                    self._files = self._find()
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
        datasets: dict[str, BatchDataset] = {}
        for split in SPLITS:
            labels = [label for label, name in enumerate(self.class_names) for _ in splits[split][name]]
            flat = [file for name in self.class_names for file in splits[split][name]]
            crop_scale = self.crop_scale if split == "train" else None
            sizes = self._sizes(flat) if self.cache is not None and crop_scale is not None else ()
            datasets[split] = dataset = FileDataset(
                flat, torch.tensor(labels), self.preprocessing, crop_scale, self.seed, self.skip_bad, self.cache, sizes
            )
            if self.cache is not None and dataset.cache is None and self._world()[1] == 0:
                _warn(f"--data.cache: '{self.cache}' has no room for the decoded {split} images; going on without")
        return datasets

    def _sizes(self, files: list[Path]) -> list[tuple[int, int]]:
        if not self.skip_bad:
            self._require_readable()
        return [self._look()[str(file)][1:] for file in files]

    def _readable(self) -> dict[str, ClassFiles]:
        """The splits without broken files; each process looks for itself, so that all have the same."""
        broken = self._broken()
        left = leave_out(self.files(), broken)
        if broken and self._world()[1] == 0:
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
        split = self._split()
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
        for file in dict.fromkeys(dataset.files[index] for index in indices):
            if file not in self._reported:
                self._reported.add(file)
                _warn(f"'{printable(file)}' cannot be read as an image and is left out ({len(self._reported)} so far)")

    def _find(self) -> dict[str, ClassFiles]:
        root = self.images_root
        if not root.is_dir():
            raise UserError(
                f"--data.root: there is no folder '{root}'; it must hold one folder of images for each class"
            )
        given = [split for split in SPLITS if holds_folders(root / split)]
        if "train" not in given:
            return self._cut(list_classes(root), SPLITS[1:])
        for other in ("valid", "validation"):
            if "val" not in given and holds_folders(root / other):
                raise UserError(f"'{root / other}' would be ignored; call it '{root / 'val'}'")
        found = {split: list_classes(root / split) for split in given}
        for split in given[1:]:
            if list(found[split]) != list(found["train"]):
                odd = sorted(set(found[split]) ^ set(found["train"]))
                raise UserError(
                    f"'{root / split}' and '{root / 'train'}' need the same classes, but differ in: {', '.join(odd)}"
                )
        return found | self._cut(found["train"], [split for split in SPLITS if split not in given])

    def _cut(self, files: ClassFiles, missing: list[str] | tuple[str, ...]) -> dict[str, ClassFiles]:
        # the test set first, so that it does not depend on the share of the validation set
        fractions = {split: self.fractions[split] for split in ("test", "val") if split in missing}
        found: dict[str, ClassFiles] = {split: {} for split in ("train", *missing)}
        for name, of_class in files.items():
            folder = of_class[0].parent.name
            names = [spelt(f"{folder}/{file.name}") for file in of_class]
            splits = hashed_split(names, fractions, seed=self.split_seed, class_name=name)
            for split, positions in splits.items():
                found[split][name] = [of_class[position] for position in positions]
        return found


def _all(splits: dict[str, ClassFiles]) -> list[Path]:
    return sorted((file for classes in splits.values() for files in classes.values() for file in files), key=str)


def _warn(text: str) -> None:
    """Says it beside a progress bar, if there is one."""
    tqdm.write(f"warning: {text}", file=sys.stderr)
