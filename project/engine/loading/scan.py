"""Lists the image files of folders and of command lines."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO
from unicodedata import normalize

from ..errors import listed, printable
from ..preprocessing import Bands
from .decode import IMAGE_SUFFIXES

# of macOS's archives, Synology's thumbnails, Windows
_OF_SYSTEMS = {"__MACOSX", "@eaDir", "$RECYCLE.BIN"}
_FILES_OF_SYSTEMS = {"Thumbs.db", "desktop.ini"}


class ImageScan:
    """Lists the image files below folders, and counts the files left out by suffix.

    Files count whose names end as images' do, dead links too, which reading them reports. Hidden
    folders and those of operating systems do not, nor do macOS's ``._photo.jpg``. Links to folders
    are followed unless they lead back up.

    Args:
        bands: Given if images are used as they are stored: ``.npy`` files are images, too.
        note: Is told of folders that are left out; without it, one that cannot be read is an error.

    Attributes:
        left_out: The number of files that are no images, by the ends of their names.
    """

    def __init__(
        self, bands: Bands | None = None, note: Callable[[str], object] | None = None
    ) -> None:
        self._suffixes = IMAGE_SUFFIXES | {".npy"} if bands else IMAGE_SUFFIXES
        self._note = note
        self.left_out = Counter[str]()

    def images(self, folder: str | Path, skip: Collection[str] = ()) -> Iterator[str]:
        """Lists a folder's images, then its subfolders', sorted by name on every system.

        Folders whose paths are in ``skip`` are passed by.
        """
        waiting = [os.fspath(folder)]
        while waiting:
            path = waiting.pop()
            try:
                if os.path.islink(path) and _leads_back(path):
                    self._say(f"'{path}' leads back to a folder that it is in, and is left out")
                    continue
                files, folders = self._entries(path)
            except OSError as error:
                if self._note is None:
                    raise
                self._say(f"'{path}' cannot be read ({error.strerror}), and is left out")
                continue
            prefix = os.path.join(path, "")
            yield from (prefix + name for name in sorted(files, key=spelt))
            below = (
                prefix + name for name in sorted(filter(counts, folders), key=spelt, reverse=True)
            )
            waiting += (place for place in below if place not in skip)

    def _say(self, text: str) -> None:
        if self._note is not None:
            self._note(text)

    def _entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the names of a folder's image files and of the folders in it."""
        files, folders = [], []
        with os.scandir(folder) as entries:  # needs no call of the system for an ordinary file
            for entry in entries:
                name, link = entry.name, entry.is_symlink()  # one to itself would be an error
                if os.path.isdir(entry.path) if link else entry.is_dir():
                    folders.append(name)
                elif name.startswith("._") or name in _FILES_OF_SYSTEMS:
                    continue
                elif (suffix := _suffix(name)) in self._suffixes and (link or entry.is_file()):
                    files.append(name)
                elif not name.startswith("."):
                    self.left_out[suffix] += 1
        return files, folders


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _leads_back(link: str) -> bool:
    """Returns True for a link to a folder that the link itself is in."""
    target = os.stat(link)
    return any(os.path.samestat(target, os.stat(parent)) for parent in Path(link).parents)


def describe_left_out(left_out: Mapping[str, int]) -> str:
    """Says how many files are left out, by the ends of their names; nothing where there are none.

    >>> describe_left_out({".heic": 6})
    '6 files ending in .heic are left out'
    >>> describe_left_out({".txt": 1, ".json": 11, "": 2})
    '14 files are left out: 11 ending in .json, 2 without a suffix and 1 ending in .txt'
    """
    kinds = {
        f"ending in {suffix}" if suffix else "without a suffix": count
        for suffix, count in sorted(left_out.items(), key=lambda pair: -pair[1])
    }
    total = sum(kinds.values())
    if not total:
        return ""
    files = f"{total:,} files" if total > 1 else "1 file"
    are = "are left out" if total > 1 else "is left out"
    if len(kinds) == 1:
        return f"{files} {printable(*kinds)} {are}"
    return f"{files} {are}: {listed((f'{count:,} {kind}' for kind, count in kinds.items()), 5)}"


def counts(folder: str) -> bool:
    """Returns False for hidden folders and those of operating systems."""
    return not folder.startswith(".") and folder not in _OF_SYSTEMS


def spelt(name: str) -> str:
    """Spells a name alike on every system: in Unicode's composed form.

    Bytes that are not UTF-8 become hexadecimal, as Python keeps them in a form that cannot be
    written.
    """
    if name.isascii():
        return name
    return normalize("NFC", name).encode(errors="surrogateescape").decode(errors="backslashreplace")


def image_paths(
    named: Iterable[str], note: Callable[[str], object], bands: Bands | None = None
) -> Iterator[str]:
    """Lists the named files, whatever they are, and the image files in named folders."""
    scan = ImageScan(bands, note)
    for path in named:
        if os.path.isdir(path):
            yield from scan.images(path)
        else:
            yield path
    if text := describe_left_out(scan.left_out):
        note(text)


def listed_paths(stream: BinaryIO) -> list[str]:
    """Reads paths, one a line; or with NUL between them, as ``find -print0`` writes them."""
    text = stream.read()
    return [os.fsdecode(path) for path in text.split(b"\0" if b"\0" in text else b"\n") if path]
