"""The image files that a command line, a folder or a list on standard input names, one after the other."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from .listing import counts, is_folder, is_image_file

_BLOCK = 2**16


def image_paths(named: Iterable[str], note: Callable[[str], object]) -> Iterator[str]:
    """Lists image files: those that are named, and those in folders that are named, at any depth.

    Only the entries of the folders that are open are in memory. A file that is named is listed whatever it is or is
    called, a missing one too: reading it tells. In folders, files count whose names end as images' do, hidden folders
    and those of systems do not, entries come sorted by name, and links to folders are followed unless they lead back up.

    Args:
        named: Files and folders.
        note: Is told of what is left out, a line each.
    """
    for path in named:
        if os.path.isdir(path):
            yield from _in_folder(path, (), note)
        else:
            yield path


def _in_folder(folder: str, above: tuple[tuple[int, int], ...], note: Callable[[str], object]) -> Iterator[str]:
    try:
        status = os.stat(folder)
        if (identity := (status.st_dev, status.st_ino)) in above:
            note(f"'{folder}' leads back to a folder that it is in, and is left out")
            return
        with os.scandir(folder) as entries:
            listed = ((entry, is_folder(entry)) for entry in entries)
            kinds = sorted((entry.name, folder) for entry, folder in listed if folder or is_image_file(entry))
    except OSError as error:
        note(f"'{folder}' cannot be read ({error.strerror}), and is left out")
        return
    for name, within in kinds:
        path = os.path.join(folder, name)
        if not within:
            yield path
        elif counts(name):
            yield from _in_folder(path, (*above, identity), note)


def listed_paths(stream: BinaryIO) -> Iterator[str]:
    """Reads paths as they come, one a line; or with NUL between them, as ``find -print0`` writes them.

    Args:
        stream: Of bytes, such as ``sys.stdin.buffer``.
    """
    rest, end = b"", b""
    while block := os.read(stream.fileno(), _BLOCK):
        rest += block
        end = end or (b"\0" if b"\0" in rest else b"\n" if b"\n" in rest else b"")
        if end:
            *whole, rest = rest.split(end)
            yield from (os.fsdecode(path) for path in whole if path)
    if rest:
        yield os.fsdecode(rest)
