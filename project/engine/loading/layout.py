"""Folders of images: which are classes, which are splits, and which images belong to neither."""

import os
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError, listed, printable
from ..preprocessing import Bands
from .paths import Paths, joined, prefix_of
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
    """The folders of classes.

    Attributes:
        splits: The folder of each split; none if the classes are in no split.
        root: The folder that holds the classes, those of ``train`` if there are splits.
        classes: The folders of each class in each split; one class may have several, whose names
            are the same text in different bytes.
    """

    splits: dict[str, Path]
    root: Path
    classes: dict[str, dict[str, list[Path]]]


def find_layout(root: Path, known: Collection[str] = ()) -> Layout:
    """Finds splits and classes by the names of folders, without listing files.

    A single folder around the classes is entered, unless it is one of the ``known`` classes.
    """
    top = _enter(root, known)
    names = one_of_each_split((folder.name for folder in subfolders(top)), top)
    # a class may be called train
    if not any(map(subfolders, [top / names["train"]] if names else [])):
        names = {}
    splits = {split: top / name for split, name in names.items()}
    roots = {split: _enter(folder, known) for split, folder in (splits or {"train": top}).items()}
    classes = {split: defaultdict[str, list[Path]](list) for split in roots}
    for split, folder in roots.items():
        for class_folder in subfolders(folder):
            classes[split][spelt(class_folder.name)].append(class_folder)
    return Layout(splits, roots["train"], {split: {**names} for split, names in classes.items()})


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
    if label_from is not None:
        return _list_by_names(root, bands, label_from)
    try:
        return _list_classes(root, bands, known)
    except UserError as error:
        raise UserError(f"{error}{_alternatives(root)}") from error


def _list_classes(root: Path, bands: Bands | None, known: Collection[str]) -> FoundFiles:
    layout, scan = find_layout(root, known), ImageScan(bands)
    start = len(prefix_of(root))

    def images(folder: Path) -> Paths:
        return Paths.of((path[start:] for path in scan.images(folder)), root)

    splits = {
        split: {name: joined(map(images, folders)) for name, folders in classes.items()}
        for split, classes in layout.classes.items()
    }
    folders = [folders for classes in layout.classes.values() for folders in classes.values()]
    loose = [*scan.images(root, skip={str(folder) for folder in chain.from_iterable(folders)})]
    _require_training_images(layout, splits["train"], loose, scan)
    empty = [name for name, files in splits["train"].items() if not files]
    if empty and not known:
        folder = printable(layout.classes["train"][empty[0]][0])
        raise UserError(
            f"the class folder '{folder}' has no images{_left_out(scan)}; add some or remove the folder"
        )
    if not layout.splits and not known:
        _require_no_splits(layout, splits["train"])
    where = os.path.relpath(layout.root, root.absolute().parent)
    notes = [f"classes from the folders of {where}/"]
    for split in [split for split in splits if split != "train"]:
        folder, inside = layout.splits[split], f"{layout.splits[split]}{os.sep}"
        if any(splits[split].values()):
            notes.append(f"{split} from {folder.name}/")
            continue
        del splits[split]
        count, loose = len(loose), [path for path in loose if not path.startswith(inside)]
        notes.append(_describe_unsorted(split, folder, count - len(loose)))
    notes += _describe_loose(root, layout.splits, loose)
    return FoundFiles(splits, layout.root, [*notes, describe_left_out(scan.left_out)])


def _list_by_names(root: Path, bands: Bands | None, label_from: str) -> FoundFiles:
    """Lists the images of each class that a regular expression finds, in folders of splits."""
    scan, top = ImageScan(bands), _enter(root, ())
    names = one_of_each_split((folder.name for folder in subfolders(top)), top)
    folders = {split: top / name for split, name in names.items()}
    start = len(prefix_of(root))
    splits: list[str] = []
    paths: list[str] = []
    for split, folder in (folders or {"train": root}).items():
        paths += [path[start:] for path in scan.images(folder)]
        splits += [split] * (len(paths) - len(splits))
    labels = [group_name(label_from, path, "--data.label_from") for path in paths]
    notes = [f"classes from paths, by '{label_from}'"]
    notes += [f"{split} from {name}/" for split, name in names.items()]
    loose = [*scan.images(root, skip={*map(str, folders.values())})] if folders else []
    notes += [*_describe_loose(root, folders, loose), describe_left_out(scan.left_out)]
    files = Paths.of(paths, root)
    return FoundFiles(by_class(files, splits, map(spelt, labels)), root, notes)


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


def _require_training_images(
    layout: Layout, classes: Mapping[str, Paths], loose: list[str], scan: ImageScan
) -> None:
    root = printable(layout.root)
    if not any(classes.values()):
        if not loose and scan.left_out[".npy"]:
            raise UserError(
                f"--data.root: '{root}' has .npy files alone, which need --data.channels"
            )
        what = f"has no images{_left_out(scan)}"
        if loose:
            example = printable(os.path.basename(loose[0]))
            what = f"has images (such as '{example}'), but no class folders with images"
        raise UserError(
            f"--data.root: '{root}' {what}; it must hold one folder for each class, as in"
            f" {root}/daisy/1.jpg, or --data.label_from finds the class in each path"
        )


def _left_out(scan: ImageScan) -> str:
    text = describe_left_out(scan.left_out)
    return f" ({text})" if text else ""


def _alternatives(root: Path) -> str:
    """Returns the commands that read what else is in a folder, for the end of an error."""
    files = [file for folder in [root, *subfolders(root)] for file in sorted(folder.iterdir())]
    tables = [str(file) for file in files if file.suffix.lower() in TABLE_SUFFIXES]
    sources = [name for name in tables if "train" in name[len(str(root)) :].lower()] or tables
    if any(file.suffix in (".arrow", ".parquet") for file in files):
        sources.append(f"hf:{root}")
    commands = [f"python -m {_PACKAGE}.fit --data {shlex.quote(name)}" for name in sources]
    return f"; or did you mean {listed(commands, 4, 'or')}" if commands else ""


def _require_no_splits(layout: Layout, classes: Mapping[str, Paths]) -> None:
    """Refuses classes that look like splits, by their names or as they hold the same folders."""
    alike = defaultdict[frozenset[str], list[str]](list)
    for name, (folder, *_) in layout.classes["train"].items():
        if all(os.sep in path for path in classes[name].strings(folder)):
            alike[frozenset(inside.name for inside in subfolders(folder))].append(name)
    several = (names for inside, names in alike.items() if len(inside) > 1 and len(names) > 1)
    repeated = next(several, [])
    by_name = [name for name in classes if name.lower() in SPLIT_OF]
    if len(by_name) == len(classes) or len({*split_names(classes).values()}) > 1 or repeated:
        raise UserError(
            f"--data.root: the folders {listed(repeated or classes, 5)} of"
            f" '{printable(layout.root)}' look"
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


def _describe_loose(root: Path, splits: Mapping[str, Path], loose: list[str]) -> list[str]:
    """Describes images in no class; those in a folder beside ``train`` are an error."""
    top = splits["train"].parent if splits else root
    for path in loose if splits else ():
        parts = Path(path).relative_to(top).parts if top in Path(path).parents else ()
        if len(parts) > 1 and top / parts[0] not in splits.values():
            raise UserError(
                f"'{printable(top / parts[0])}' has images, but is no split: rename it if it is"
                " one, such as to val or test, or move it away"
            )
    if not loose:
        return []
    example = os.path.relpath(loose[0], root)
    return [f"images in no class are left out: {len(loose):,}, such as {example}"]


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
