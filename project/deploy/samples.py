"""Images to try an exported file on: given ones, those of the checkpoint's data, or generated ones."""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from project.analysis.data import open_data
from project.engine.errors import UserError, printable
from project.engine.loading.files import FileDataset
from project.engine.loading.scan import image_paths, spelt
from project.engine.preprocessing import Preprocessing
from project.engine.run.checkpoint import About

_Item = TypeVar("_Item")


class Samples(NamedTuple):
    """Images as evaluation sees them.

    Attributes:
        images: uint8 (N, 3, crop, crop).
        labels: int64 (N,), positions in the list of class names; None where nobody knows.
        source: Where they come from, for people to read.
    """

    images: Tensor
    labels: Tensor | None
    source: str


def folder_samples(root: Path, class_names: list[str], preprocessing: Preprocessing, most: int) -> Samples:
    """Reads images of a folder, of all its parts alike.

    Args:
        root: Holds the files, or folders with files. Where each file lies in a folder that is named after a class, that
            is its label.
        class_names: The classes in the order of their labels.
        preprocessing: How a file becomes an image.
        most: How many images to read at most.

    Raises:
        UserError: There is no such folder, it has no images, or one of them cannot be read.
    """
    return _read(_spread(_files(root), most), root, class_names, preprocessing)


def folder_split(
    root: Path, class_names: list[str], preprocessing: Preprocessing, most: tuple[int, int]
) -> tuple[Samples, Samples]:
    """Reads images of a folder to calibrate on and others to measure on; see :func:`folder_samples`.

    Args:
        root: The folder.
        class_names: The classes in the order of their labels.
        preprocessing: How a file becomes an image.
        most: How many images of either kind to read at most.

    Raises:
        UserError: There are fewer than two images, or none can be read.
    """
    files = _files(root)
    if len(files) < 2:
        raise UserError(f"--images: '{printable(root)}' has one image; calibrating and measuring take more")
    calibration = _spread(files, min(most[0], len(files) // 2))
    used = set(calibration)
    measured = _spread([file for file in files if file not in used], most[1])
    return _read(calibration, root, class_names, preprocessing), _read(measured, root, class_names, preprocessing)


def data_samples(about: About, split: str, most: int) -> Samples:
    """Takes images of the data that a checkpoint was trained with, if they are at hand; downloads nothing.

    Args:
        about: What the checkpoint says of itself.
        split: ``val`` or ``test``.
        most: How many images to take at most.

    Raises:
        UserError: The data are not at hand.
    """
    data = open_data(about)
    place = getattr(data, "images_root", None)
    if place is not None and not Path(place).is_dir():
        raise UserError(f"its images in '{printable(place)}' are not there")
    data.setup("test")
    dataset = data.splits[split]
    positions = _spread(range(len(dataset)), most)
    images = torch.stack([dataset.image(position) for position in positions])
    if images.shape[-1] != about["preprocessing"]["crop"]:
        raise UserError(f"its images have {images.shape[-1]} pixels now")
    name = {"val": "validation", "test": "test"}[split]
    return Samples(images, dataset.labels[positions], f"{len(images):,} images of the checkpoint's {name} set")


def generated_samples(crop: int, count: int = 32) -> Samples:
    """Makes images up, of blurred noise with much contrast and with little.

    Args:
        crop: Their side in pixels.
        count: How many.
    """
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 6, 6, generator=generator)
    contrast = torch.linspace(0.2, 2, count).view(-1, 1, 1, 1)
    smooth = interpolate(coarse, size=(crop, crop), mode="bicubic")
    grain = 0.1 * torch.randn(count, 3, crop, crop, generator=generator)
    images = (255 * ((smooth - 0.5) * contrast + 0.5 + grain)).clamp(0, 255).to(torch.uint8)
    return Samples(images, None, f"{count} generated images")


def _files(root: Path) -> list[Path]:
    """All image files in a folder and in those within, in the same order on every system."""
    found = sorted(map(Path, image_paths([str(root)], note=lambda _: None)))
    if not found:
        raise UserError(f"--images: '{printable(root)}' has no images")
    return found


def _spread(items: Sequence[_Item], most: int) -> list[_Item]:
    """At most so many, one of each of as many equal parts, so that each class has its share.

    Which one is drawn, always the same: every n-th would be of one class where labels repeat.
    """
    count = min(len(items), most)
    starts = [part * len(items) // count for part in range(count + 1)]
    generator = random.Random(0)
    return [items[generator.randrange(start, end)] for start, end in pairwise(starts)]


def _read(files: list[Path], root: Path, class_names: list[str], preprocessing: Preprocessing) -> Samples:
    positions = {name: label for label, name in enumerate(class_names)}
    found = [_label(root, file, positions) for file in files]
    labels = torch.tensor(found) if min(found) >= 0 else None
    dataset = FileDataset(files, torch.tensor(found), preprocessing)
    images = torch.stack([dataset.image(position) for position in range(len(files))])
    return Samples(images, labels, f"{len(files):,} images in {printable(root)}")


def _label(root: Path, file: Path, positions: Mapping[str, int]) -> int:
    """The class of the first folder on the way to a file that is called like one; -1 where none is."""
    names = (spelt(folder.name) for folder in (*reversed(file.relative_to(root).parents), root))
    return next((positions[name] for name in names if name in positions), -1)
