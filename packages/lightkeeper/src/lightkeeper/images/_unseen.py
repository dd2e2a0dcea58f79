"""Finds out whether images that are to be measured were trained on, wherever they lie now."""

import copy
import filecmp
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ..exact._errors import UserError
from ._batch import ArrayDataset
from ._checkpoint import About
from ._data_module import ImageDataModule
from ._files import FileDataset
from ._image_files import ImageFilesDataModule
from ._map_dataset import MapDatasetModule
from ._remembered import remembered_data

_OF_SPLITS = (
    *("split_seed", "val_fraction", "test_fraction", "folds", "fold"),
    *("group", "split_column"),
)
_OF_PLACES = ("root", "file")
_SAMPLE = 4096
_FAILURES = (UserError, OSError, TypeError, ValueError, LookupError, ArithmeticError)
"""What options of a checkpoint may lead to where they do not fit, or were changed."""


def was_trained_on(about: About, data: ImageDataModule, split: str) -> bool | None:
    """Returns True if images of a split were trained on, False if none was; None if unknown.

    An image's split in training follows from its name and the checkpoint's options: by these, the
    data is cut once more. If that makes the checkpoint's training set, its images are told apart.
    Else it may be another data set whose names are alike: then files are compared with those of
    training, if these are where they were.
    """
    digests = about.get("digests")
    known = digests.get("train") if isinstance(digests, dict) else None
    if known is not None and data.digests().get("train") == known:
        return False
    try:
        data_class, options = remembered_data(about, ImageDataModule)
    except UserError:
        return None
    try:
        recut = _recut(data, data_class, options)
        by_name = recut is not None and _share_images(recut, data, split)
        if recut is not None and known is not None and recut.digests().get("train") == known:
            return by_name
    except _FAILURES:
        by_name = False
    by_content = None
    if isinstance(data, ImageFilesDataModule) and issubclass(data_class, ImageFilesDataModule):
        try:
            trained = data_class(**options)
            by_content = _share_content(trained, data, split)
            # hashing reads all files that are new on this machine
            if by_content or not by_name or known in (None, trained.digests().get("train")):
                return by_content
        except _FAILURES:
            pass
    elif known is None:  # a checkpoint of before
        return by_name
    return True if by_name and split != "all" else by_content


def cut_of_training(about: About, data: ImageDataModule) -> dict[str, object]:
    """Returns the options of splits that the data has otherwise, as they were in training."""
    trained = about["data"]["init_args"] if about["data"] is not None else {}
    return {
        name: trained[name]
        for name in _OF_SPLITS
        if name in trained and trained[name] != data.hparams.get(name, trained[name])
    }


def _recut(
    data: ImageDataModule, data_class: type[ImageDataModule], options: Mapping[str, Any]
) -> ImageDataModule | None:
    """Returns the same data in the splits of a checkpoint; None if it was trained on other kinds."""
    own = dict(data.hparams)
    cut = {name: options[name] for name in _OF_SPLITS if name in options and name in own}
    if isinstance(data, MapDatasetModule) and issubclass(data_class, MapDatasetModule):
        fractions = {"test": cut["test_fraction"], "val": cut["val_fraction"]}
        datasets = copy.copy(data)  # which are opened already
        datasets.cut(cut["split_seed"], fractions)
        return datasets
    if isinstance(data, ImageFilesDataModule) and issubclass(data_class, ImageFilesDataModule):
        others = {name: value for name, value in own.items() if name not in _OF_SPLITS}
        files = type(data)(**others, **cut)
        files.expect_classes(data.class_names, "the checkpoint")
        return files
    if type(data) is not data_class:
        return None
    return data_class(
        **{**own, **options, **{name: own[name] for name in _OF_PLACES if name in own}}
    )


def _share_images(recut: ImageDataModule, data: ImageDataModule, split: str) -> bool:
    """Returns True if training images of the one are in a split of the other, but not in its own."""
    # an image that training itself has in both, as links, is no reason
    trained = _identities(recut, "train") - _identities(recut, split)
    return not trained.isdisjoint(_identities(data, split))


def _identities(data: ImageDataModule, split: str) -> set[Hashable]:
    """Returns what tells the images of a split apart, within one data set."""
    if isinstance(data, ImageFilesDataModule):
        return {file.path for file in data.files() if file.split == split}
    if isinstance(data, MapDatasetModule):
        source = split if split in data.datasets else "train"
        return {(source, position) for position in data.positions[split]}
    data.digests()  # which loads it
    dataset = data.splits[split]
    if isinstance(dataset, FileDataset):
        return {dataset.path(index) for index in range(len(dataset))}
    if isinstance(dataset, ArrayDataset):
        return {blake2b(image.numpy().tobytes()).digest() for image in dataset.images.cpu()}
    raise TypeError(f"the images of {type(dataset).__name__} cannot be told apart")


def _share_content(trained: ImageFilesDataModule, data: ImageFilesDataModule, split: str) -> bool:
    """Returns True likewise, by whatever path: for links to training images, and copies."""
    held_out = ("val", "test") if split == "all" else (split,)
    seen = _Files(file.path for file in trained.files() if file.split == "train")
    unseen = _Files(file.path for file in trained.files() if file.split in held_out)
    measured = (file.path for file in data.files() if file.split == split)
    return any(path in seen and path not in unseen for path in measured)


class _Files:
    """Files in which a link to one, or a copy, is found."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._identities = set[tuple[int, int]]()
        self._by_length = defaultdict[int, list[str]](list)
        self._by_sample: dict[int, dict[bytes, list[str]]] = {}
        for path in filter(os.path.isfile, paths):  # reading a named pipe would wait for ever
            fact = os.stat(path)
            self._identities.add((fact.st_dev, fact.st_ino))
            self._by_length[fact.st_size].append(path)

    def __contains__(self, path: str) -> bool:
        if not os.path.isfile(path):
            return False
        fact = os.stat(path)
        is_link = (fact.st_dev, fact.st_ino) in self._identities
        alike = [] if is_link else self._alike(path, fact.st_size)
        return is_link or any(filecmp.cmp(path, other, shallow=False) for other in alike)

    def _alike(self, path: str, length: int) -> Sequence[str]:
        """Returns the files of the same length and with the same bytes in the middle."""
        if length not in self._by_length:
            return []
        if length not in self._by_sample:
            samples = self._by_sample[length] = defaultdict(list)
            for other in self._by_length[length]:
                samples[_sample(other, length)].append(other)
        return self._by_sample[length].get(_sample(path, length), [])


def _sample(path: str, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(length // 2)
        return file.read(_SAMPLE)
