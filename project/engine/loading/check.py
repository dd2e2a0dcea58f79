"""The check of image files before training, with a record that makes later checks fast."""

import contextlib
import hashlib
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from ..errors import UnreadableFileError, UserError, listed
from ..hardware import usable_cores
from ..preprocessing import Bands
from ..run.files import whole_file
from ..run.progress import Progress
from .decode import check_image, decode, named, open_image, read_bands, reason, upright_size
from .paths import CODEC, ClassFiles, Paths, joined

_VERSION = 4  # of the record; another number where the check or the facts change
_WORTH_PROCESSES = 4096  # so many new files take about as long as starting processes does
_MOST_PROCESSES = 16
_AT_ONCE = 64
_UNSURE_NS = 2 * 10**9  # a file may change twice within a tick of the file system's clock

ROW = np.dtype(
    {
        "names": ["name", "length", "changed", "width", "height", "format", "mode", "pixels"],
        "formats": ["u8", "i8", "i8", "i4", "i4", "S8", "S16", "S32"],
    }
)
"""A file: a hash of its name, its length in bytes (-1: broken), its mtime in ns, and its facts.

These are the size of the upright image; and where all of it was decoded its format, whatever the
file is called, PIL's name of the kind of its pixels, and a hash of the image as training sees it.
"""
_COLUMNS = ["name", "length", "changed"]
_STAMP = np.dtype([(column, ROW[column]) for column in _COLUMNS])


def check_files(
    files: Paths, root: Path, bands: Bands | None = None, sizes: bool = False, pixels: bool = False
) -> tuple[dict[str, str], NDArray[Any]]:
    """Checks the image files below ``root`` that are new or changed since the last check.

    Returns why some are broken, by their paths, and a row of ``ROW`` for each file.

    A file is the same as long as its name, its length and its time of change are. Broken ones are
    checked each time. ``sizes`` asks for widths and heights; ``pixels`` and ``bands`` decode each
    image in full, which finds damage inside.
    """
    record, sure_before = _record_of(f"{root}{bands or ''}"), time.time_ns() - _UNSURE_NS
    stamps = np.fromiter(_stamps(files, os.path.join(root, "")), _STAMP, len(files))
    known = _recall(record)
    # of a copy, as searching the column of a mapped record takes twice as long
    rows = known[known["name"].copy().searchsorted(stamps["name"]).clip(max=len(known) - 1)]
    same = stamps["length"] >= 0
    for column in _COLUMNS:
        same &= rows[column] == stamps[column]
    for asked, column in ((sizes, "width"), (pixels, "pixels")):
        same &= rows[column].astype(bool) | (not asked)
    new, defects = np.flatnonzero(~same), dict[str, str]()
    rows[new] = np.zeros(1, ROW)
    rows[_COLUMNS] = stamps
    lengths, changed = rows["length"], rows["changed"]
    for place, facts in zip(
        new.tolist(), _look_at(files.take(new), bands, sizes, pixels), strict=True
    ):
        if isinstance(facts, str):
            defects[next(files.take([place]).strings())], lengths[place] = facts, -1
        else:
            rows[place] = (*rows[place].tolist()[:3], *facts)
    if len(defects) < len(new):
        sure = rows[(lengths >= 0) & (changed < sure_before)]
        _remember(record, sure[sure["name"].argsort()])
    return defects, rows


def _stamps(files: Paths, below: str) -> Iterator[tuple[int, int, int]]:
    """Yields the first three columns of each file's row."""
    for path in files.strings():
        name = f"{_VERSION} {path.removeprefix(below)}".encode(*CODEC)
        key = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        try:
            status = os.stat(path)
        except OSError:  # looking at it will tell
            yield key, -1, -1
        else:
            yield key, status.st_size, status.st_mtime_ns


def _hash_of_pixels(image: torch.Tensor) -> str:
    _, height, width = image.shape
    hashed = hashlib.blake2b(repr((width, height)).encode(), digest_size=16)
    hashed.update(image.permute(1, 2, 0).contiguous().numpy().data)
    return hashed.hexdigest()


def _look(file: Path, bands: Bands | None, sizes: bool, pixels: bool) -> Any:
    """Returns the requested facts of a file, or the reason why it cannot be read."""
    width = height = 0
    kind = mode = hashed = ""
    try:
        if bands is not None:
            stored = read_bands(file, bands)
            _, height, width = stored.shape
            if pixels:
                kind, mode = (
                    file.suffix if file.suffix.isascii() else "",
                    f"{bands[0]} x {bands[1]} bits",
                )
                hashed = _hash_of_pixels(stored)
            return width, height, kind, mode, hashed
        check_image(file)
        if sizes or pixels:
            with open_image(file) as image, named(file):
                width, height = upright_size(image, file)
                if pixels:
                    kind, mode, hashed = (
                        image.format or "",
                        image.mode,
                        _hash_of_pixels(decode(image, file)),
                    )
        return width, height, kind, mode, hashed
    except UnreadableFileError as error:
        return reason(error)


def _look_at(files: Paths, bands: Bands | None, sizes: bool, pixels: bool) -> Iterator[Any]:
    """Checks files in threads, and many files in processes, because of Python's global lock."""
    cores, threads = min(usable_cores(), _MOST_PROCESSES), 1 if pixels else 4
    look = partial(_look, bands=bands, sizes=sizes, pixels=pixels)
    workers = cores if len(files) >= _WORTH_PROCESSES and cores > 1 else 0
    # workers of a loader end when this process is killed, which those of other pools do not
    loader = DataLoader(
        cast(Any, files),
        batch_size=_AT_ONCE,
        num_workers=workers,
        collate_fn=partial(_look_in_threads, threads if workers else threads * cores, look),
        generator=torch.Generator(),  # which it draws from, and not from the run's
    )
    with contextlib.closing(Progress(len(files), text="checking images")) as progress:
        for facts in loader:
            progress.advance(len(facts))
            yield from facts


def _look_in_threads(threads: int, look: Any, files: Sequence[Path]) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(look, files))


def _record_of(root: str) -> Path:
    """The file for what is known of a folder of images."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(caches):  # no home: below this, nothing can be kept
        caches = os.devnull
    place = os.fsencode(os.path.abspath(root))
    name = hashlib.blake2b(place, digest_size=12).hexdigest()
    return Path(caches, __name__.partition(".")[0], f"{name}.checked.npy")


def _recall(record: Path) -> NDArray[Any]:
    """Reads an earlier check's rows, sorted by ``name``; one row of zeros if unreadable."""
    with contextlib.suppress(Exception):  # whatever NumPy makes of a damaged file
        known: NDArray[Any] = np.asarray(np.lib.format.open_memmap(record, mode="r"))
        if known.dtype == ROW and known.ndim == 1 and len(known):
            return known
    return np.zeros(1, ROW)


def _remember(record: Path, known: NDArray[Any]) -> None:
    """Replaces the record atomically; on failure, the next check reads every file again."""
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(record) as partial_file:
            np.save(partial_file, known)


def few(broken: Mapping[str, str]) -> str:
    """Names the first of some broken files, with the reasons, and counts the others."""
    return listed((f"'{file}' ({why})" for file, why in broken.items()), 3)


def leave_out(splits: Mapping[str, ClassFiles], broken: Mapping[str, str]) -> dict[str, ClassFiles]:
    """Returns splits without broken files; each split and training class must keep some."""
    left = {
        split: ClassFiles(
            {
                name: files.take([file not in broken for file in files.strings()])
                for name, files in classes.items()
            }
        )
        for split, classes in splits.items()
    }
    for name, files in left["train"].items() if "train" in left else ():
        if not files and splits["train"][name]:
            raise UserError(f"class '{name}' has no training image that can be read: {few(broken)}")
    for split, classes in left.items():
        if not classes.paths:
            raise UserError(f"{split} has no image that can be read: {few(broken)}")
    return left


def survey(
    root: Path, splits: Mapping[str, ClassFiles], bands: Bands | None = None
) -> dict[str, Any]:
    """Describes image files for JSON: classes, unreadable files, duplicates, sizes, formats."""
    places = [
        {"file": file, "split": split, "class": label}
        for split, classes in splits.items()
        for label, files in classes.items()
        for file in files.strings(root)
    ]
    files = joined(classes.paths for classes in splits.values())
    defects, rows = check_files(files, root, bands, pixels=True)
    unreadable, alike = [], defaultdict[bytes, list[dict[str, str]]](list)
    for place, file, pixels in zip(places, files.strings(), rows["pixels"].tolist(), strict=True):
        if file in defects:
            unreadable.append({**place, "reason": defects[file]})
        else:
            alike[pixels].append(place)
    facts = rows[rows["length"] >= 0]
    return {
        "images": len(places),
        "classes": {
            name: {split: len(splits[split][name]) for split in splits} for name in splits["train"]
        },
        "unreadable": unreadable,
        "duplicates": [
            {
                "across_splits": len({place["split"] for place in group}) > 1,
                "across_classes": len({place["class"] for place in group}) > 1,
                "files": group,
            }
            for group in alike.values()
            if len(group) > 1
        ],
        "width": _range(facts["width"].tolist()),
        "height": _range(facts["height"].tolist()),
        "formats": dict(Counter(facts["format"].astype(str).tolist()).most_common()),
        "modes": dict(Counter(facts["mode"].astype(str).tolist()).most_common()),
    }


def _range(values: list[int]) -> dict[str, int] | None:
    return (
        {"min": min(values), "median": median_low(values), "max": max(values)} if values else None
    )
