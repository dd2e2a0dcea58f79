"""What a start has to know of every image file, remembered so that the next start looks at new files only."""

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from torch.utils.data import DataLoader

from ..errors import UnreadableFileError
from ..hardware import usable_cores
from ..run.progress import counting
from .checks import in_threads
from .decode import MAX_PIXELS, check_image, open_image, reason, upright_size

_FORMAT = b"checked image files, 1 "  # another number where the check or the columns change
_WORTH_PROCESSES = 4096  # so many new files take about as long as starting processes does
_MOST_PROCESSES = 16
_AT_ONCE = 256
_CHECKING = "checking images"
_THREADS = 4  # for each process: a disk across a network answers several requests at once
_UNSURE_NS = 2 * 10**9  # a file may change twice within a tick of the file system's clock

Stamp = tuple[int, int]
"""The length of a file in bytes, and when it was changed, in nanoseconds."""


class Header(NamedTuple):
    """What looking at a file found.

    Attributes:
        defect: Why it cannot be read as an image; None where it can.
        width: Of the upright image, in pixels; 0 where nobody asked for it.
        height: Of the upright image, in pixels; 0 where nobody asked for it.
        stamp: Of the file, just before; None where it was not there.
    """

    defect: str | None
    width: int = 0
    height: int = 0
    stamp: Stamp | None = None


def record_of(root: Path, folder: Path | None) -> Path | None:
    """Where what is known of a folder of images is kept.

    Args:
        root: The folder of images.
        folder: Where to keep it; by default the user's folder for caches.

    Returns:
        A file of its own for each folder of images; None where the user has no such folder.
    """
    if folder is None:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if not os.path.isabs(caches):  # there is no home
            return None
        folder = Path(caches, __name__.partition(".")[0])
    place = os.fsencode(os.path.abspath(root))
    return folder / f"{hashlib.blake2b(place, digest_size=12).hexdigest()}.checked"


def read_headers(
    files: Sequence[Path], root: Path, record: Path | None, sizes: bool = False, visible: bool = True
) -> list[Header]:
    """Looks at those files that are new or were changed since they were last looked at.

    A file is the same as long as its name, its length and its time of change are. Broken ones are looked at each time.

    Args:
        files: The image files.
        root: What they lie in.
        record: See :func:`record_of`; what is found is added to it, where it can be written.
        sizes: Whether widths and heights are asked for; for PNG files, PIL decodes the image to know how it is turned.
        visible: Whether to say how far it is, where it takes longer.

    Returns:
        What was found, in the order of the files.
    """
    paths, prefix = [str(file) for file in files], f"{root}{os.sep}"
    names = [path.removeprefix(prefix) for path in paths]
    sure_before = time.time_ns() - _UNSURE_NS
    stamps = [_stamp(path) for path in paths]
    known = _recall(record) if record is not None else {}
    unknown = Header("not looked at yet")
    headers = [known.get(name, unknown) for name in names]
    new = [
        position
        for position, (header, stamp) in enumerate(zip(headers, stamps, strict=True))
        if header.stamp != stamp or header is unknown or (sizes and not header.width)
    ]
    for position, found in zip(new, _look_at([files[position] for position in new], sizes, visible), strict=True):
        headers[position] = found._replace(stamp=stamps[position])
    if record is not None and any(headers[position].defect is None for position in new):
        _remember(record, zip(names, headers, strict=True), sure_before)
    return headers


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:  # looking at it will tell
        return None
    return found.st_size, found.st_mtime_ns


def _look_at(files: Sequence[Path], sizes: bool, visible: bool) -> Iterator[Header]:
    """Looks at many files in processes, as Python's lock keeps threads from working at the same time."""
    look = partial(_look, sizes=sizes)
    processes = min(usable_cores(), _MOST_PROCESSES)
    if len(files) < _WORTH_PROCESSES or processes < 2:
        yield from in_threads(look, files, _CHECKING, visible=visible)
        return
    # workers of a loader end when this process is killed, which those of other pools do not
    together = partial(_look_at_several, look)
    loader = DataLoader(cast(Any, files), batch_size=_AT_ONCE, num_workers=processes, collate_fn=together)
    with counting(len(files), _CHECKING, visible) as advance:
        for headers in loader:
            advance(len(headers))
            yield from headers


def _look_at_several(look: Callable[[Path], Header], files: Sequence[Path]) -> list[Header]:
    return list(in_threads(look, files, "", threads=_THREADS, visible=False))


def _look(file: Path, sizes: bool) -> Header:
    try:
        check_image(file)
        if not sizes:
            return Header(None)
        with open_image(file) as image:
            return Header(None, *upright_size(image, file))
    except UnreadableFileError as error:
        return Header(reason(error))


def _recall(record: Path) -> dict[str, Header]:
    """What an earlier start found, by name; nothing where the record is not whole."""
    try:
        head, body = record.read_bytes().split(b"\n", 1)
        if head != _head(body):
            return {}
        names, *columns = json.loads(body)
        numbers = np.array(columns)
        whole = numbers.shape == (4, len(names)) and numbers.dtype == np.int64
        if not whole or (numbers[2:] < 0).any() or (numbers[2:].prod(0) > MAX_PIXELS).any():
            return {}
        lengths, changed, widths, heights = columns
        stamps = zip(lengths, changed, strict=True)
        return dict(zip(names, map(Header, repeat(None), widths, heights, stamps), strict=True))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _remember(record: Path, found: Iterable[tuple[str, Header]], before: int) -> None:
    """Replaces the record as a whole; where that cannot be, the next start looks at every file again."""
    rows = [
        (name, *header.stamp, header.width, header.height)
        for name, header in found
        if header.stamp is not None and header.stamp[1] < before and header.defect is None
    ]
    body = json.dumps(list(zip(*rows, strict=True))).encode()
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=record.parent, suffix=".partial")
        try:
            with open(descriptor, "wb") as file:
                file.write(_head(body) + b"\n" + body)
            os.replace(name, record)
        except OSError:
            os.unlink(name)
            raise


def _head(body: bytes) -> bytes:
    return _FORMAT + hashlib.blake2b(body, digest_size=16).hexdigest().encode()
