"""The image files of a folder that has a folder for each class."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import UserError, printable
from .decode import IMAGE_SUFFIXES

ClassFiles = dict[str, list[Path]]
"""The files of each class, by name; classes in the order of their labels."""

_OF_SYSTEMS = {"__MACOSX", "@eaDir", "$RECYCLE.BIN"}  # of macOS's archives, Synology's thumbnails, Windows
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keeps Python from looking for garbage among many new objects that all stay: a third of the time of listing.

    Once it looks again, they count as old objects, among which it seldom looks; or never, where it already does not look
    among others, as among what a command has imported.
    """
    enabled, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    if frozen:
        gc.collect()  # what is garbage by now, which would otherwise stay
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if not frozen:
            gc.unfreeze()  # into the oldest generation
        if enabled:
            gc.enable()


def holds_folders(folder: Path) -> bool:
    """Whether it is a folder with folders inside that count."""
    return folder.is_dir() and any(entry.is_dir() and counts(entry.name) for entry in folder.iterdir())


def list_classes(root: Path) -> ClassFiles:
    """Finds the images of each class, in its folder and in the folders within, at any depth.

    Args:
        root: Holds a folder for each class; see :func:`counts`. Links are followed unless they lead back up.

    Raises:
        UserError: There are no class folders, or only one; there are no images, or a class has none.
        OSError: A folder cannot be read.
    """
    entries = [entry for entry in sorted(root.iterdir(), key=_name) if counts(entry.name)]
    if dead := [entry for entry in entries if _leads_nowhere(entry)]:
        raise UserError(f"'{printable(dead[0])}' is a link that leads nowhere; repair or remove it")
    folders = [entry for entry in entries if entry.is_dir()]
    above = (_identity(root),)
    images = [_images(folder, above) for folder in folders]
    if not any(images):
        raise UserError(
            f"--data.root: {_why_no_images(root)}; it must hold one folder for each class, as in"
            f" {printable(root)}/daisy/1.jpg"
        )
    _require_classes(root, folders, images)
    return {spelt(folder.name): files for folder, files in zip(folders, images, strict=True)}


def _require_classes(root: Path, folders: list[Path], images: list[list[Path]]) -> None:
    if empty := [folder for folder, files in zip(folders, images, strict=True) if not files]:
        raise UserError(f"the class folder '{printable(empty[0])}' has no images; add some or remove the folder")
    names = {spelt(folder.name) for folder in folders}
    like_splits = all(map(split_meant, names))
    if like_splits and "train" in names:
        raise UserError(
            f"--data.root: '{printable(root / 'train')}' has images, but no class folders; it must hold one folder for"
            f" each class, as in {printable(root)}/train/daisy/1.jpg"
        )
    if like_splits:
        raise UserError(
            f"--data.root: the folders {', '.join(sorted(names))} of '{printable(root)}' look like splits, not classes;"
            " call that of the training images 'train', and others 'val' and 'test'"
        )
    if len(names) < len(folders):
        raise UserError(f"'{printable(root)}' has two class folders with one name, as bytes are not UTF-8; rename one")
    if len(names) < 2:
        raise UserError(
            f"--data.root: '{printable(root)}' has one class only, '{printable(folders[0].name)}'; there is nothing to"
            " tell apart"
        )


def _why_no_images(root: Path) -> str:
    if files := _images(root):
        return (
            f"'{printable(root)}' has images (such as '{printable(files[0].name)}'), but no class folders with images"
        )
    return f"'{printable(root)}' has no images"


def _images(folder: Path, above: tuple[tuple[int, int], ...] = ()) -> list[Path]:
    """The image files in a folder, then those in the folders within, in the same order on every system."""
    if (identity := _identity(folder)) in above:
        return []
    names, within = [], []
    with os.scandir(folder) as entries:  # asks nothing more of the disk for an ordinary file
        for entry in entries:
            if is_image_file(entry):
                names.append(entry.name)
            elif is_folder(entry) and counts(entry.name):
                within.append(entry.name)
    paths = {path.name: path for path in folder.iterdir()}  # in a tenth of the time of putting each together
    images = [paths[name] for name in sorted(names) if name in paths]
    for name in sorted(within):
        images += _images(folder / name, (*above, identity))
    return images


def in_sub_folders(root: Path, classes: ClassFiles) -> list[Path]:
    """The files that lie deeper than in their class's own folder.

    Args:
        root: Holds the class folders.
        classes: As :func:`list_classes` finds them.
    """
    depth = str(root / "class" / "file").count(os.sep)
    return [file for files in classes.values() for file in files if str(file).count(os.sep) > depth]


def counts(folder: str) -> bool:
    """Whether images in a folder of that name count: not in a hidden one, nor where a system keeps its own."""
    return not folder.startswith(".") and folder not in _OF_SYSTEMS


def split_meant(folder: str) -> str | None:
    """The split that a folder's name means, whatever its case: ``val`` for ``Validation``; None where it means none."""
    return _SPLIT_NAMES.get(folder.lower())


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one."""
    # a link to itself would be an error
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def is_image_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one, whose name ends as an image's does."""
    if os.path.splitext(entry.name)[1].lower() not in IMAGE_SUFFIXES:
        return False
    if not entry.is_symlink():
        return entry.is_file()
    # a dead link is an image that is missed, which reading it will report
    return os.path.isfile(entry.path) or not os.path.exists(entry.path)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _leads_nowhere(entry: Path) -> bool:
    return entry.is_symlink() and not entry.exists()


def _name(entry: Path) -> str:
    """What to sort by: paths themselves compare without case on Windows."""
    return entry.name


def spelt(name: str) -> str:
    """The name itself, with bytes that are not UTF-8 in hexadecimal: Python keeps them in a form that cannot be written."""
    return name if name.isascii() else name.encode(errors="surrogateescape").decode(errors="backslashreplace")
