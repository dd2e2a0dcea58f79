"""Folders of images: which are classes, which are splits, and which images belong to neither."""

import os
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from glob import escape
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError, listed, printable
from ..preprocessing import Bands
from .paths import Paths, prefix_of
from .scan import ImageScan, counts, describe_left_out, spelt
from .sheet import TABLE_SUFFIXES
from .splits import SPLITS, group_name

_PACKAGE = __name__.partition(".")[0]
_SPLIT_NAMES = {
    "train": ("training", "train"),
    "val": ("validation", "valid", "val", "dev"),
    "test": ("testing", "test", "evaluation", "eval"),
}
SPLIT_OF = {word: split for split, words in _SPLIT_NAMES.items() for word in words}
"""The split that a usual name means, in lower case."""


class FoundFiles(NamedTuple):
    """Image files as a folder or a table has them.

    Attributes:
        splits: The files of each class, for each split that the data itself has.
        root: The folder below which a file's name decides its split.
        layout: How the data was understood, and what is left out, for people to read.
        groups: The group of each file, by its path below the root, if a table says it.
    """

    splits: dict[str, dict[str, Paths]]
    root: Path
    layout: list[str]
    groups: Mapping[str, str] = {}


class Layout(NamedTuple):
    """The folders of splits and classes.

    Attributes:
        splits: The folder of each split; none if the classes are in no split.
        roots: The folder that holds the classes, for each split or for ``train`` alone.
        classes: The names of these classes.
    """

    splits: dict[str, Path]
    roots: dict[str, Path]
    classes: dict[str, list[str]]


def find_layout(root: Path, known: Collection[str] = (), by_path: bool = False) -> Layout:
    """Finds splits and classes by the names of folders, without listing files.

    A single folder around the classes is entered, unless it is one of the ``known`` classes. If
    classes are found ``by_path``, a split needs no folders.
    """
    top = _enter(root, known)
    names = one_of_each_split((folder.name for folder in subfolders(top)), top)
    if names and not by_path and not subfolders(top / names["train"]):
        names = {}  # a class may be called train
    splits = {split: top / name for split, name in names.items()}
    roots = {split: _enter(folder, known) for split, folder in (splits or {"train": top}).items()}
    classes = {
        split: [] if by_path else [spelt(inside.name) for inside in subfolders(folder)]
        for split, folder in roots.items()
    }
    return Layout(splits, roots, classes)


def one_of_each_split(names: Iterable[str], where: Path) -> dict[str, str]:
    """Returns the name that means each split, ``train`` first; two for one split are an error."""
    of_splits = defaultdict[str, list[str]](list)
    for name, split in split_names(names).items():
        of_splits[split].append(name)
    for split, same in of_splits.items():
        if len(same) > 1:
            names = listed(sorted(same))
            raise UserError(f"'{printable(where)}': {names} both mean {split}; move one away")
    return {split: of_splits[split][0] for split in SPLITS if split in of_splits}


def split_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the split of each name that means one; all may have a prefix or suffix in common.

    >>> split_names(["Train", "Validation"])
    {'Train': 'train', 'Validation': 'val'}
    >>> split_names(["seg_train", "seg_test", "daisy"])
    {'seg_train': 'train', 'seg_test': 'test'}
    """
    affixes = defaultdict[tuple[str, str], dict[str, str]](dict)
    for name in names:
        for word, split in SPLIT_OF.items():
            prefix, match, suffix = name.lower().partition(word)
            if match:
                affixes[prefix, suffix][name] = split
    exact = affixes["", ""]
    likely = [
        of_names
        for of_names in affixes.values()
        if "train" in of_names.values() and (of_names is exact or len({*of_names.values()}) > 1)
    ]
    return max(
        likely, key=lambda of_names: (len({*of_names.values()}), of_names is exact), default={}
    )


def subfolders(folder: Path) -> list[Path]:
    """Lists the folders in a folder that count, sorted by name on every system."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if counts(entry.name) and entry.is_symlink() and not os.path.exists(entry.path):
                raise UserError(
                    f"'{printable(entry.path)}' is a link that leads nowhere; repair or remove it"
                )
            if counts(entry.name) and entry.is_dir():
                folders.append(Path(entry.path))
    return sorted(folders, key=lambda folder: (spelt(folder.name), folder.name))


def _enter(folder: Path, known: Collection[str]) -> Path:
    """Enters single folders around several others, as archives have them."""
    while len(inside := subfolders(folder)) == 1 and inside[0].name.lower() not in SPLIT_OF:
        if len(subfolders(inside[0])) < 2 or spelt(inside[0].name) in known:
            break
        folder = inside[0]
    return folder


def list_folder(
    root: Path,
    bands: Bands | None = None,
    known: Collection[str] = (),
    label_from: str | None = None,
) -> FoundFiles:
    """Lists the images of each class and split of a folder, at any depth of a class's folder.

    Images that are in no class are reported, or refused if they may be a split of another name.
    With ``label_from``, a regular expression finds the class in each path below the root.
    """
    if not root.is_dir():
        raise UserError(
            f"--data.root: there is no folder '{root}'; it must hold one folder of images for each"
            " class"
        )
    try:
        return _list_folder(root, bands, known, label_from)
    except UserError as error:
        raise UserError(f"{error}{_alternatives(root)}") from error


def _list_folder(
    root: Path, bands: Bands | None, known: Collection[str], label_from: str | None
) -> FoundFiles:
    layout, scan = find_layout(root, known, label_from is not None), ImageScan(bands)
    start = len(prefix_of(root))
    prefixes = {split: prefix_of(folder) for split, folder in layout.roots.items()}
    splits = {
        split: {name: list[str]() for name in names} for split, names in layout.classes.items()
    }
    loose = []
    for path in scan.images(root):
        split = next((split for split in prefixes if path.startswith(prefixes[split])), "")
        name, slash, _ = path.removeprefix(prefixes.get(split, "")).partition(os.sep)
        if label_from is not None and split:
            name = group_name(label_from, path[start:], "--data.label_from")
        elif not (split and slash):
            loose.append(path)
            continue
        splits[split].setdefault(spelt(name), []).append(path[start:])
    _require_images(layout, splits["train"], loose, known, describe_left_out(scan.left_out))
    if not (layout.splits or known or label_from):
        depth = len(prefixes["train"]) - start
        _require_no_splits(layout.roots["train"], splits["train"], depth)
    where = f"the folders of {os.path.relpath(layout.roots['train'], root.absolute().parent)}/"
    notes = [f"classes from {where if label_from is None else f'paths, by {label_from!r}'}"]
    for split, folder in [*layout.splits.items()][1:]:
        if any(splits[split].values()):
            notes.append(f"{split} from {folder.name}/")
            continue
        del splits[split]
        count = len(loose)
        loose = [path for path in loose if not path.startswith(prefix_of(folder))]
        notes.append(_describe_unsorted(split, folder, count - len(loose)))
    if layout.splits:
        _require_no_other_split(layout.splits, loose)
    if loose:
        notes.append(f"images in no class are left out: {len(loose):,}, such as {loose[0][start:]}")
    files = {
        split: {name: Paths.of(paths, root) for name, paths in classes.items()}
        for split, classes in splits.items()
    }
    root_of_names = root if label_from is not None else layout.roots["train"]
    return FoundFiles(files, root_of_names, [*notes, describe_left_out(scan.left_out)])


def by_class(
    files: Paths, splits: Iterable[str], labels: Iterable[str]
) -> dict[str, dict[str, Paths]]:
    """Sorts files by the split and the label of each."""
    places = defaultdict[str, dict[str, list[int]]](lambda: defaultdict(list))
    for place, (split, label) in enumerate(zip(splits, labels, strict=True)):
        places[split][label].append(place)
    return {
        split: {label: files.take(at) for label, at in classes.items()}
        for split, classes in places.items()
    }


def unlabelled(name: str, count: int) -> str:
    """Describes the images of a test set without classes."""
    return f"{count:,} images of {name} have no classes: they are for the command predict"


def _require_images(
    layout: Layout,
    classes: Mapping[str, Sequence[str]],
    loose: Sequence[str],
    known: Collection[str],
    left_out: str,
) -> None:
    """Refuses a folder without training images, or with a class without any."""
    root = printable(layout.roots["train"])
    others = f" ({left_out})" if left_out else ""
    if not any(classes.values()):
        what = f"has no images{others}"
        if loose:
            example = printable(os.path.basename(loose[0]))
            what = f"has images (such as '{example}'), but no class folders with images"
        raise UserError(
            f"--data.root: '{root}' {what}; it must hold one folder for each class, as in"
            f" {root}/daisy/1.jpg, or --data.label_from finds the class in each path"
        )
    empty = [name for name, files in classes.items() if not files]
    if empty and not known:
        folder = f"{root}/{printable(empty[0])}"
        raise UserError(
            f"the class folder '{folder}' has no images{others}; add some or remove the folder"
        )


def _alternatives(root: Path) -> str:
    """Returns the commands that read what else is in a folder, for the end of an error."""
    files = [file for folder in [root, *subfolders(root)] for file in sorted(folder.iterdir())]
    tables = [str(file) for file in files if file.suffix.lower() in TABLE_SUFFIXES]
    sources = [name for name in tables if "train" in name[len(str(root)) :].lower()] or tables
    if any(file.suffix in (".arrow", ".parquet") for file in files):
        sources.append(f"hf:{root}")
    commands = [f"python -m {_PACKAGE}.fit --data {shlex.quote(name)}" for name in sources]
    return f"; or did you mean {listed(commands, 4, 'or')}" if commands else ""


def _require_no_splits(root: Path, classes: Mapping[str, Sequence[str]], depth: int) -> None:
    """Refuses classes that look like splits, by their names or as they hold the same folders.

    Paths have ``depth`` characters before the name of the class.
    """
    alike = defaultdict[frozenset[str], list[str]](list)
    for name, paths in classes.items():
        parts = [path[depth:].split(os.sep) for path in paths]
        if all(len(part) > 2 for part in parts):
            alike[frozenset(part[1] for part in parts)].append(name)
    several = (names for inside, names in alike.items() if len(inside) > 1 and len(names) > 1)
    repeated = next(several, [])
    by_name = [name for name in classes if name.lower() in SPLIT_OF]
    if len(by_name) == len(classes) or len({*split_names(classes).values()}) > 1 or repeated:
        raise UserError(
            f"--data.root: the folders {listed(repeated or classes, 5)} of '{printable(root)}' look"
            " like splits, not classes; call that of the training images 'train', with a folder for"
            " each class inside, and others 'val' and 'test'"
            + (", or say what the classes are with --data.class_names" if repeated else "")
        )


def _describe_unsorted(split: str, folder: Path, count: int) -> str:
    """Describes a split without class folders; of a validation set, it is an error."""
    if not count:
        return f"{folder.name}/ has no images"
    if split == "val":
        raise UserError(
            f"'{printable(folder)}' has {count:,} images, but no folder for each class, as train"
            " has; sort them, or move the folder away to cut a validation set from train"
        )
    return unlabelled(f"{folder.name}/", count)


def _require_no_other_split(splits: Mapping[str, Path], loose: Iterable[str]) -> None:
    """Refuses images in a folder beside ``train`` that is no known split."""
    top = prefix_of(splits["train"].parent)
    for path in loose:
        name, slash, _ = path.removeprefix(top).partition(os.sep)
        if path.startswith(top) and slash and name not in {part.name for part in splits.values()}:
            raise UserError(
                f"'{printable(top + name)}' has images, but is no split: rename it if it is one,"
                " such as to val or test, or move it away"
            )


def class_order(
    splits: Mapping[str, Mapping[str, Paths]],
    source: Path,
    expected: Sequence[str],
    expected_by: object,
) -> list[str]:
    """Returns the names of the classes in the order of their labels: ``expected``, or sorted."""
    names = {*chain.from_iterable(splits.values())}
    if expected:
        if unknown := names - {*map(spelt, expected)}:
            raise UserError(
                f"'{printable(source)}' has images of {listed(sort_classes(unknown), 4)}, but"
                f" {printable(expected_by)} knows the {len(expected)} classes"
                f" {listed(expected, 4)} alone"
            )
        return [*expected]
    if untrained := names - splits.get("train", {}).keys():
        raise UserError(
            f"'{printable(source)}' has no training image of {listed(sort_classes(untrained), 4)}"
        )
    if len(names) < 2:
        raise UserError(
            f"'{printable(source)}' has one class only, '{printable(*names)}'; there is nothing to"
            " tell apart; --data.label_from finds classes in paths"
            f"{_alternatives(source) if source.is_dir() else ''}"
        )
    return sort_classes(names)


def sort_classes(names: Iterable[str]) -> list[str]:
    """Sorts the names of classes: numbers by their value, if all are numbers."""
    names = sorted(names)
    numbers = all(name.removeprefix("-").isdecimal() for name in names)
    return sorted(names, key=int) if numbers else names


def split_tables(file: Path) -> Mapping[str, Path]:
    """Finds the tables of splits: ``val.csv`` beside ``train.csv``, ``valid/x`` beside ``train/x``.

    Empty if ``file`` is not that of ``train``, or there is no other.
    """
    if not file.is_file():
        return {}
    folder = file.absolute().parent
    beside = {other.stem: other for other in folder.glob(f"*{file.suffix}")}
    alike = {other.parent.name: other for other in folder.parent.glob(f"*/{escape(file.name)}")}
    for name, tables in ((file.stem, beside), (folder.name, alike)):
        splits = one_of_each_split(tables, folder)
        if splits.get("train") == name and len(splits) > 1:
            return {split: tables[name] for split, name in splits.items()}
    return {}
