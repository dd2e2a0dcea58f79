"""The image files of folders: those of classes for training, and those that a command line names."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import UserError, printable
from ..preprocessing import Bands
from .decode import IMAGE_SUFFIXES
from .paths import PathBlock, Paths

_OF_SYSTEMS = {
    "__MACOSX",
    "@eaDir",
    "$RECYCLE.BIN",
}  # of macOS's archives, Synology's thumbnails, Windows
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def walk(
    folder: str,
    note: Callable[[str], object] | None = None,
    above: tuple[str, ...] = (),
    bands: Bands | None = None,
) -> Iterator[str]:
    """Lists the image files of a folder, then those of the folders within, sorted by name on every system.

    Files count whose names end as images' do, dead links too, which reading them reports; hidden folders and those of
    operating systems do not. Links to folders are followed unless they lead back up, to one of the real paths ``above``.
    ``note`` is told of folders that are left out; without it, one that cannot be read is an error.
    """
    real = os.path.realpath(folder)
    if real in above:
        if note is not None:
            note(f"'{folder}' leads back to a folder that it is in, and is left out")
        return
    files, folders, suffixes = [], [], (*IMAGE_SUFFIXES, *([".npy"] if bands else []))
    try:
        with os.scandir(folder) as entries:  # asks nothing more of the disk for an ordinary file
            for entry in entries:
                link = entry.is_symlink()  # one to itself would be an error
                if os.path.isdir(entry.path) if link else entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lstrip(".").lower().endswith(suffixes):
                    dead = link and not os.path.exists(entry.path)
                    if dead or (os.path.isfile(entry.path) if link else entry.is_file()):
                        files.append(entry.name)
    except OSError as error:
        if note is None:
            raise
        note(f"'{folder}' cannot be read ({error.strerror}), and is left out")
        return
    prefix = os.path.join(folder, "")
    yield from (prefix + name for name in sorted(files))
    for name in sorted(filter(counts, folders)):
        yield from walk(os.path.join(folder, name), note, (*above, real), bands)


def counts(folder: str) -> bool:
    """Returns False for the names of hidden folders and those in which systems keep their own images."""
    return not folder.startswith(".") and folder not in _OF_SYSTEMS


def split_meant(folder: str) -> str | None:
    """The split that a folder's name means in any case, such as ``val`` for ``Validation``; None where it means none."""
    return _SPLIT_NAMES.get(folder.lower())


def holds_folders(folder: Path) -> bool:
    """Returns True for a folder with folders inside that count."""
    return folder.is_dir() and any(
        entry.is_dir() and counts(entry.name) for entry in folder.iterdir()
    )


def spelt(name: str) -> str:
    """The name with bytes that are not UTF-8 in hexadecimal, as Python keeps them in a form that cannot be written."""
    return (
        name
        if name.isascii()
        else name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    )


def class_folders(root: Path) -> list[Path]:
    """Lists the folders of classes, sorted by name on every system."""
    folders = []
    for entry in sorted(root.iterdir()):
        if counts(entry.name) and entry.is_symlink() and not entry.exists():
            raise UserError(
                f"'{printable(entry)}' is a link that leads nowhere; repair or remove it"
            )
        if counts(entry.name) and entry.is_dir():
            folders.append(entry)
    return folders


def list_classes(root: Path, block: PathBlock, bands: Bands | None = None) -> dict[str, Paths]:
    """Adds the images of each class to a block, from its folder and the folders within, at any depth."""
    above = (os.path.realpath(root),)
    found = (
        (folder, len(f"{folder}{os.sep}"), walk(str(folder), None, above, bands))
        for folder in class_folders(root)
    )
    classes = {
        spelt(folder.name): block.add(folder, (file[start:] for file in files))
        for folder, start, files in found
    }
    if not any(classes.values()):
        example = next(walk(str(root), bands=bands), "")
        if not example and any(walk(str(root), bands=(1, 8))):
            raise UserError(
                f"--data.root: '{printable(root)}' has .npy files alone, which need --data.channels"
            )
        what = f"has images (such as '{printable(Path(example).name)}'), but no class folders with images"
        raise UserError(
            f"--data.root: '{printable(root)}' {what if example else 'has no images'}; it must hold one folder for each"
            f" class, as in {printable(root)}/daisy/1.jpg"
        )
    if empty := [name for name, files in classes.items() if not files]:
        raise UserError(
            f"the class folder '{printable(root / empty[0])}' has no images; add some or remove the folder"
        )
    if all(map(split_meant, classes)):
        raise UserError(
            f"--data.root: the folders {', '.join(classes)} of '{printable(root)}' look like splits, not classes; call"
            " that of the training images 'train', with a folder for each class inside, and others 'val' and 'test'"
        )
    if len(classes) < 2:
        raise UserError(
            f"--data.root: '{printable(root)}' has one class only, '{printable(*classes)}'; there is nothing to tell"
            " apart"
        )
    return classes


def image_paths(
    named: Iterable[str], note: Callable[[str], object], bands: Bands | None = None
) -> Iterator[str]:
    """Lists the files that are named, whatever they are, and the image files in folders that are named."""
    for path in named:
        if os.path.isdir(path):
            yield from walk(path, note, bands=bands)
        else:
            yield path


def listed_paths(stream: BinaryIO) -> list[str]:
    """Reads paths, one a line; or with NUL between them, as ``find -print0`` writes them."""
    text = stream.read()
    return [os.fsdecode(path) for path in text.split(b"\0" if b"\0" in text else b"\n") if path]
