"""Finds out whether images that are to be measured were trained on, wherever they lie now."""

import copy
import os
from collections.abc import Hashable, Iterable, Mapping
from hashlib import blake2b, file_digest
from typing import Any

from ..exact._errors import UserError, listed, printable
from ._batch import ArrayDataset
from ._checkpoint import ABOUT, About, read_checkpoint, weights_file
from ._checkpoints import remembered_data
from ._data_module import ImageDataModule
from ._files import FileDataset
from ._image_files import ImageFilesDataModule
from ._map_dataset import MapDatasetModule

SPLIT_OPTIONS = (
    *("split_seed", "val_fraction", "test_fraction", "folds", "fold"),
    *("train_fraction", "group", "split_column"),
)
"""Options of a data module that decide which split an image is in."""
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
    known = about.get("digests", {}).get("train")
    if known is not None and data.digests().get("train") == known:
        return False  # the same cut: the other splits were not trained on
    if split in trained_splits(about, data.digests()):
        return True
    try:
        data_class, options = remembered_data(about, ImageDataModule)
    except UserError:
        return None
    try:
        recut = _recut(data, data_class, options)
        by_name = recut is not None and _share_images(recut, data, split)
        if recut is not None and known is not None and recut.digests().get("train") == known:
            return by_name  # the same images, cut otherwise: names are certain
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


def trained_splits(about: About, digests: Mapping[str, str]) -> list[str]:
    """Names the splits that now have the images of training, and had others in training."""
    known = about.get("digests", {})
    trained = known.get("train", "unknown")
    return [
        split
        for split, digest in digests.items()
        if split != "train" and digest == trained != known.get(split)
    ]


def cut_as_in_training(about: About, data: ImageDataModule) -> str:
    """Advises the options of splits that differ from those of training; empty if none does."""
    trained = about["data"]["init_args"] if about["data"] is not None else {}
    options = [
        f"--data.{name} {'null' if trained[name] is None else trained[name]}"
        for name in SPLIT_OPTIONS
        if name in trained and trained[name] != data.hparams.get(name, trained[name])
    ]
    return f"cut these as in training, with {listed(options)}" if options else ""


def seen_by_weights(source: object, data: object) -> str:
    """Describes splits whose images weights may have been trained on; empty if none is known.

    Args:
        source: The weights that training begins with; those of a run's checkpoint say what they
            were trained on.
        data: The data that is trained on now.
    """
    if not isinstance(source, str) or not isinstance(data, ImageDataModule):
        return ""
    try:
        about: About = read_checkpoint(weights_file(source))[ABOUT]
    except UserError:  # weights of others
        return ""
    seen = [split for split in ("val", "test") if was_trained_on(about, data, split)]
    if not seen:
        return ""
    text = f"'{printable(source)}' may have been trained on images that are in {listed(seen)} now"
    return "; ".join(filter(None, [text, cut_as_in_training(about, data)]))


def _recut(
    data: ImageDataModule, data_class: type[ImageDataModule], options: Mapping[str, Any]
) -> ImageDataModule | None:
    """Returns the same data in the splits of a checkpoint; None if that saw another kind of data."""
    own = dict(data.hparams)
    cut = {name: options[name] for name in SPLIT_OPTIONS if name in options and name in own}
    if isinstance(data, MapDatasetModule) and issubclass(data_class, MapDatasetModule):
        fractions = {"test": cut["test_fraction"], "val": cut["val_fraction"]}
        datasets = copy.copy(data)  # which are opened already
        datasets.cut(cut["split_seed"], fractions)
        return datasets
    if isinstance(data, ImageFilesDataModule) and issubclass(data_class, ImageFilesDataModule):
        others = {name: value for name, value in own.items() if name not in SPLIT_OPTIONS}
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
    """Returns True likewise by content, which also finds links to training images, and copies."""
    held_out = ("val", "test") if split == "all" else (split,)
    measured = [file.path for file in data.files() if file.split == split]
    seen = _copies(measured, [file.path for file in trained.files() if file.split == "train"])
    unseen = _copies(seen, [file.path for file in trained.files() if file.split in held_out])
    return len(unseen) < len(seen)


def _copies(paths: Iterable[str], others: Iterable[str]) -> list[str]:
    """Returns the paths whose files have the same content as one of the others."""
    alike = [*filter(os.path.isfile, paths)]  # reading a named pipe would wait for ever
    known = [*filter(os.path.isfile, others)]
    for fact in (os.path.getsize, _middle, _digest):  # the cheap ones first
        facts = {path: fact(path) for path in {*alike, *known}}
        common = {facts[path] for path in alike} & {facts[path] for path in known}
        alike = [path for path in alike if facts[path] in common]
        known = [path for path in known if facts[path] in common]
    return alike


def _middle(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(os.path.getsize(path) // 2)
        return file.read(_SAMPLE)


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:
        return file_digest(file, blake2b).digest()
