"""Lists the image files of folders and of command lines."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from unicodedata import category, normalize

from ..exact._errors import listed
from ._decode import IMAGE_SUFFIXES
from ._preprocessing import Bands
from ._sheet import UTF_16, decoded

_OF_SYSTEMS = {
    *("__macosx", "lost+found", "network trash folder"),
    *("$recycle.bin", "system volume information", "thumbs.db", "desktop.ini"),
    *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "~snapshot"),  # of NAS
}
"""Files and folders of operating systems, in small letters: some do not tell these apart."""
_TEMPORARY = (".", "~$", "~syncthing~")


def images_below(
    folder: str | Path, left_out: Counter[str], bands: Bands | None = None
) -> Iterator[str]:
    """Yields the paths below a folder of its images, then its subfolders', each sorted by name.

    Files count whose names end as images' do, whatever they are, as reading them tells. Hidden
    files and folders and those of operating systems do not. Links to folders are followed unless
    they lead back up.

    Args:
        folder: The folder.
        left_out: Counts the files that are no images, by the ends of their names.
        bands: Given if images are used as they are stored: ``.npy`` files are images, too.
    """
    suffixes = IMAGE_SUFFIXES | {".npy"} if bands else IMAGE_SUFFIXES
    prefix = os.path.join(folder, "")
    for parent, folders, names in os.walk(prefix, onerror=_refuse, followlinks=True):
        inside = sorted(filter(is_visible, folders), key=to_nfc)
        folders[:] = [name for name in inside if not _leads_up(Path(parent, name))]
        for name in sorted(filter(is_visible, names), key=to_nfc):
            suffix = os.path.splitext(name)[1].lower()
            if suffix in suffixes:
                yield os.path.join(parent, name).removeprefix(prefix)
            else:
                left_out[suffix] += 1


def _refuse(error: OSError) -> None:
    """Raises an error about a folder, which ``os.walk`` would leave out."""
    raise error


def _leads_up(folder: Path) -> bool:
    """Returns True for a link to a folder that it is in."""
    return folder.is_symlink() and any(folder.samefile(parent) for parent in folder.parents)


def prefix_of(folder: str | Path) -> str:
    """Returns the beginning of the paths in a folder, which is empty for the working directory."""
    return os.path.join(folder, "").removeprefix(f".{os.sep}")


def describe_left_out(left_out: Counter[str]) -> str:
    """Says how many files are left out, by the ends of their names; nothing if there are none.

    >>> describe_left_out(Counter({".txt": 1, ".json": 11, "": 2}))
    'files left out: 11 .json, 2 without a suffix and 1 .txt'
    """
    if not left_out:
        return ""
    kinds = (
        f"{count:,} {suffix or 'without a suffix'}" for suffix, count in left_out.most_common()
    )
    return f"files left out: {listed(kinds, 5)}"


def is_image(name: str) -> bool:
    """Returns True for a name that counts and ends as an image's does."""
    return is_visible(name) and os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def is_visible(name: str) -> bool:
    """Returns False for hidden files and folders and those of operating systems."""
    return not name.startswith(_TEMPORARY) and name.lower() not in _OF_SYSTEMS


def to_nfc(name: str) -> str:
    """Normalizes a name to NFC, Unicode's composed form, as file systems differ in it.

    Bytes that are not UTF-8, which Python keeps in a form that cannot be written, become
    hexadecimal.
    """
    if name.isascii():
        return name
    return normalize("NFC", name).encode(errors="surrogateescape").decode(errors="backslashreplace")


def is_invisible(character: str) -> bool:
    """Returns True for spaces and characters of no width, such as joiners and variation selectors."""
    is_selector = character in "\u034f\ufe0e\ufe0f"
    return character.isspace() or category(character) == "Cf" or is_selector


def image_paths(
    named: Iterable[str], note: Callable[[str], object], bands: Bands | None = None
) -> Iterator[str]:
    """Lists the named files, whatever they are, and the image files in named folders."""
    left_out = Counter[str]()
    for path in named:
        if os.path.isdir(path):
            prefix = prefix_of(path)
            yield from (prefix + name for name in images_below(path, left_out, bands))
        else:
            yield path
    if text := describe_left_out(left_out):
        note(text)


def listed_paths(stream: BinaryIO) -> list[str]:
    """Reads paths, one a line; or with NUL between them, as ``find -print0`` writes them."""
    content = stream.read()
    text = decoded(content) if content.startswith(UTF_16) else os.fsdecode(content)
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n")
    return [path for path in lines.split("\0" if "\0" in lines else "\n") if path]
