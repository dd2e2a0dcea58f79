"""Folders of images: which are classes, which are splits, and which images belong to neither."""

import os
import re
import shlex
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ..exact._errors import UserError, listed, printable
from ._class_names import require_class_names, sort_classes
from ._preprocessing import Bands
from ._scan import describe_left_out, images_below, is_visible, prefix_of, to_nfc
from ._sheet import TABLE_SUFFIXES
from ._splits import SPLITS

_SEARCH_SECONDS = 5.0
_SPLIT_NAMES = {
    "train": ("training", "train"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("testing", "test", "evaluation", "eval"),
}
SPLIT_OF = {word: split for split, words in _SPLIT_NAMES.items() for word in words}
"""The split that a usual name means, in lower case."""


class ImageFile(NamedTuple):
    """An image file of a data set.

    Attributes:
        path: Where it is.
        label: The name of its class.
        split: ``train``, ``val`` or ``test``; ``train`` if the data set has no splits.
        group: The name whose hash decides the split where the data set does not: that of its group,
            or of the file itself.
    """

    path: str
    label: str
    split: str
    group: str


Listing = tuple[list[ImageFile], list[str]]
"""The files of a data set, and how it was understood, in phrases for people to read."""


def split_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the name that means each split, ``train`` first; {} if none does.

    Names may share a prefix or suffix. Two names for one split are an error.

    >>> split_names(["Validation", "Train"])
    {'train': 'Train', 'val': 'Validation'}
    >>> split_names(["seg_train", "seg_test", "daisy"])
    {'train': 'seg_train', 'test': 'seg_test'}
    >>> split_names(["train_station", "airport"])
    {}
    """
    affixes = defaultdict[tuple[str, str], dict[str, set[str]]](lambda: defaultdict(set))
    for name in names:
        for word, split in SPLIT_OF.items():
            prefix, match, suffix = name.lower().partition(word)
            if match:
                affixes[prefix, suffix][split].add(name)
    exact = affixes["", ""]
    # the prefix and suffix by which most splits are named; of a tie, none
    names_of = max(affixes.values(), key=lambda splits: (len(splits), splits is exact))
    if names_of is not exact and len(names_of) == 1:
        return {}
    for split, same in names_of.items():
        if len(same) > 1:
            raise UserError(f"{listed(sorted(same))} both mean {split}; move one away")
    return {split: names_of[split].pop() for split in SPLITS if split in names_of}


def split_tables(file: Path) -> Mapping[str, Path]:
    """Finds the tables of splits: ``val.csv`` beside ``train.csv``, ``valid/x`` beside ``train/x``.

    Empty if ``file`` is not that of ``train``, or there is no other.
    """
    folder = file.absolute().parent
    beside = {other.stem: other for other in folder.glob(f"*{file.suffix}")}
    alike = {other.parent.name: other for other in folder.parent.glob(f"*/{escape(file.name)}")}
    for name, tables in ((file.stem, beside), (folder.name, alike)):
        # others beside one of another name are no splits of it
        splits = split_names(tables) if "train" in name.lower() else {}
        if splits.get("train") == name and len(splits) > 1:
            return {split: tables[name] for split, name in splits.items()}
    return {}


def list_folder(
    root: Path,
    bands: Bands | None = None,
    known: Collection[str] = (),
    label_from: str | None = None,
    group: str | None = None,
) -> Listing:
    """Lists the images of each class and split of a folder, at any depth of a class's folder.

    A single folder around the classes is entered, unless it is one of the ``known`` classes.
    ``label_from`` and ``group`` are regular expressions that find the class and the group in each
    path below the root. Images that are in no class are reported, or refused if they may be a split
    of another name.
    """
    if not root.is_dir():
        raise UserError(
            f"there is no folder '{root}'; it must hold one folder of images for each class", "root"
        )
    others = Counter[str]()
    paths = [*images_below(root, others, bands)]
    left_out = describe_left_out(others)
    folders = {path[: path.rfind(os.sep) + 1] for path in paths}
    top = _enter(folders, "", known)
    by_path = label_from is not None
    names = _find_splits(root, folders, top, by_path)
    roots = {split: _enter(folders, top + name, known) for split, name in names.items()}
    if not (known or by_path):
        _require_no_splits(root, folders, roots["train"], len(names["train"]) > 0)
    files, loose = _classified(root, paths, roots, label_from, group)
    _require_images(root / roots["train"], files, left_out, bool(known) or by_path)
    source = f"the folders of {root.absolute().name}/{roots['train']}"
    notes = [f"classes from {source if label_from is None else f'paths, by {label_from!r}'}"]
    filled = {file.split for file in files}
    for split, name in [*names.items()][1:]:
        if split in filled:
            notes.append(f"{split} from {name}")
        elif split == "test":
            notes.append(unlabelled(name, len(loose.pop(split))))
        else:
            raise UserError(
                f"'{printable(root / top / name)}' has {len(loose[split]):,} images, but no folder"
                " for each class, as train has; sort them, or move the folder away to cut a"
                " validation set from train"
            )
    if names["train"]:
        beside = [path for path in Path(root, top).iterdir() if path.name.lower() in SPLIT_OF]
        empty = {f"{path.name}{os.sep}" for path in beside if path.is_dir()} - {*names.values()}
        notes += [f"no images in {name}" for name in sorted(empty)]
    if outside := [path for paths in loose.values() for path in paths]:
        notes.append(f"images in no class are left out: {len(outside):,}, such as {outside[0]}")
    return files, [*notes, left_out]


def _classified(
    root: Path,
    paths: Sequence[str],
    roots: Mapping[str, str],
    label_from: str | None,
    group: str | None,
) -> tuple[list[ImageFile], dict[str, list[str]]]:
    """Returns the files of classes, and paths that are in none, by the split they are in."""
    files = []
    prefix = prefix_of(root)
    loose = defaultdict[str, list[str]](list)
    for path in paths:
        split = next((split for split, folder in roots.items() if path.startswith(folder)), "")
        name = path.removeprefix(roots.get(split, ""))
        label = os.path.dirname(name).partition(os.sep)[0]
        if split and label_from is not None:
            name = path
            label = search_path(label_from, path, "label_from")
        if not (split and label):
            loose[split].append(path)
            continue
        if group is not None:
            name = search_path(group, path, "group")
        files.append(ImageFile(prefix + path, to_nfc(label), split, to_nfc(name)))
    return files, loose


def _find_splits(root: Path, folders: Collection[str], top: str, by_path: bool) -> dict[str, str]:
    """Finds the folders of splits in ``top``, such as ``train/``; if it has classes, ``top`` itself.

    If classes are found ``by_path``, a split needs no folders.
    """
    inside = _subfolders(folders, top)
    names = split_names(inside)
    if not (by_path or _subfolders(folders, f"{top}{names.get('train')}{os.sep}")):
        names = {}  # a class may be called train
    if "train" not in names:
        return {"train": ""}
    for name in inside:
        if name not in names.values():
            raise UserError(
                f"'{printable(root / top / name)}' has images, but is no split: rename it if it is"
                " one, such as to val or test, or move it away"
            )
    return {split: f"{name}{os.sep}" for split, name in names.items()}


def _subfolders(folders: Collection[str], parent: str) -> list[str]:
    """Returns the names of the folders in one that hold images at any depth, sorted."""
    inside = {folder[len(parent) :] for folder in folders if folder.startswith(parent)}
    names = {folder.partition(os.sep)[0] for folder in inside - {""}}
    return sorted(names, key=lambda name: (to_nfc(name), name))


def _enter(folders: Collection[str], folder: str, known: Collection[str]) -> str:
    """Enters single folders around several others, as archives have them."""
    while len(inside := _subfolders(folders, folder)) == 1 and inside[0].lower() not in SPLIT_OF:
        single = f"{folder}{inside[0]}{os.sep}"
        if len(_subfolders(folders, single)) < 2 or to_nfc(inside[0]) in known:
            break
        folder = single
    return folder


def search_path(expression: str, path: str, option: str) -> str:
    """Returns what a regular expression, or its first group, matches in a path."""
    endless = UserError(
        f"'{printable(expression)}' takes too long to search in '{printable(path)}'; repeat nothing"
        " inside what is repeated itself, as (a+)+ does",
        option,
    )
    try:
        with cpu_limit(_SEARCH_SECONDS, endless):  # a checkpoint may have it, too
            match = re.search(to_nfc(expression), to_nfc(path))
    except re.error as error:
        raise UserError(f"'{expression}' is no regular expression ({error})", option) from error
    name = match and match[min(1, match.re.groups)]
    if name is None:
        raise UserError(f"'{expression}' finds nothing in '{printable(path)}'", option)
    return name


def unlabelled(name: str, count: int) -> str:
    """Describes the images of a test set without classes."""
    return f"{count:,} images of {name} have no classes: they are for the command predict"


def _require_images(
    folder: Path, files: Sequence[ImageFile], left_out: str, may_be_empty: bool
) -> None:
    """Refuses a folder of classes without images, or of which one leads to no image."""
    labels = {file.label for file in files if file.split == "train"}
    others = f" ({left_out})" if left_out else ""
    if not labels:
        raise UserError(
            f"'{printable(folder)}' has no class folders with images{others}; it must hold one"
            " folder for each class, as in daisy/1.jpg, or label_from finds the class in each path",
            "root",
        )
    for inside in () if may_be_empty else sorted(folder.iterdir()):
        if is_visible(inside.name) and not inside.is_file() and to_nfc(inside.name) not in labels:
            raise UserError(
                f"the class folder '{printable(inside)}' has no images{others}; add some or remove"
                " the folder"
            )


def _require_no_splits(root: Path, folders: Collection[str], place: str, are_split: bool) -> None:
    """Refuses classes that look like splits, by their names or as they hold the same folders.

    If they ``are_split`` already, they may hold the same folders. None may hold splits.
    """
    classes = _subfolders(folders, place)
    depth = place.count(os.sep) + 1
    below = {folder for folder in folders if folder.count(os.sep) > depth}  # of flat classes none
    alike = defaultdict[tuple[str, ...], list[str]](list)
    nested = []
    for name in classes:
        inside = _subfolders(below, f"{place}{name}{os.sep}")
        splits = split_names(inside)
        if len(splits) > 1:
            nested += [f"{name}/{split}" for split in splits.values()]
        if len(inside) > 1 and not are_split and f"{place}{name}{os.sep}" not in folders:
            alike[*inside].append(name)
    repeated = next((names for names in alike.values() if len(names) > 1), nested)
    if repeated or len(split_names(classes)) > 1:
        raise UserError(
            f"the folders {listed(repeated or classes, 5)} of"
            f" '{printable(root / place)}' look like splits, not classes; call that of the training"
            " images 'train', with a folder for each class inside, and others 'val' and 'test'"
            + (
                ", or say what the classes are with class_names, or where in a path with label_from"
                if repeated
                else ""
            ),
            "root",
        )


def alternatives(source: Path) -> str:
    """Returns the options that read what else is in a folder, for the end of an error."""
    files = sorted([*source.glob("*"), *source.glob("*/*")])
    tables = [str(file) for file in files if file.suffix.lower() in TABLE_SUFFIXES]
    sources = [name for name in tables if "train" in name[len(str(source)) :].lower()] or tables
    if any(file.suffix in (".arrow", ".parquet") for file in files):
        sources.append(f"hf:{source}")
    commands = [f"--data {shlex.quote(name)}" for name in sources]
    return f"; or did you mean {listed(commands, 4, 'or')}" if commands else ""


def class_order(
    files: Sequence[ImageFile], source: Path, expected: Sequence[str], expected_by: object
) -> list[str]:
    """Returns the names of the classes in the order of their labels: ``expected``, or sorted."""
    names = {file.label for file in files}
    if expected:
        expected = require_class_names(expected)
        if unknown := names - {*map(to_nfc, expected)}:
            raise UserError(
                f"'{printable(source)}' has images of {listed(sort_classes(unknown), 4)}, but"
                f" {printable(expected_by)} knows the {len(expected)} classes"
                f" {listed(expected, 4)} alone"
            )
        return expected
    if untrained := names - {file.label for file in files if file.split == "train"}:
        raise UserError(
            f"'{printable(source)}' has no training image of {listed(sort_classes(untrained), 4)}"
        )
    if len(names) < 2:
        raise UserError(
            f"'{printable(source)}' has one class only, '{listed(names)}'; there is nothing to"
            " tell apart; label_from finds classes in paths"
        )
    return sort_classes(names)


@contextmanager
def cpu_limit(seconds: float, error: Exception) -> Iterator[None]:
    """Raises an error in a block that computes for longer; not in other threads than the main one.

    Python handles signals within the search for a regular expression, too, which has no limit.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise error

    if threading.current_thread() is not threading.main_thread():  # which gets no signals
        yield
        return
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
