"""The check of image files before training, with a record that makes later checks fast."""

import contextlib
import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from ..exact._errors import LocalError, UnreadableFileError
from ..exact._files import whole_file
from ..exact._workers import worker_context
from ._decode import check_image, decode, open_image, read_bands, reason
from ._hardware import usable_cores
from ._layout import ImageFile
from ._preprocessing import Bands
from ._progress import progress_bar
from ._scan import prefix_of

_VERSION = 7  # of the record; another number where the check or the facts change
_WORTH_PROCESSES = 1024  # so many new files take longer than starting processes does
_MOST_PROCESSES = 16
_AT_ONCE = 64
_STAMP = ["name", "length", "changed"]

ROW = np.dtype(
    [("name", "u8"), ("length", "i8"), ("changed", "i8"), ("width", "i4"), ("height", "i4")]
)
"""A file: a hash of its name, its length in bytes (-1: broken), its mtime in ns, and its size.

The size is the size of the upright image.
"""

T = TypeVar("T")


def check_files(
    paths: Sequence[str], root: Path, bands: Bands | None = None
) -> tuple[dict[str, str], NDArray[np.void]]:
    """Checks the image files below ``root`` that are new or changed since the last check.

    A file is the same as long as its name, its length and its time of change are. Broken ones are
    checked each time. ``bands`` decodes each image in full, which finds damage inside.

    Returns:
        The reasons why files are broken, by their paths, and a row of ``ROW`` for each file.
    """
    record = _record_of(f"{root}{bands or ''}")
    rows = np.fromiter(_stamps(paths, prefix_of(root)), ROW, len(paths))
    known = _recall(record)
    places = known["name"].searchsorted(rows["name"]).clip(max=len(known) - 1)
    same = (known[_STAMP][places] == rows[_STAMP]) & (rows["length"] >= 0)
    rows[same] = known[places[same]]
    new = np.flatnonzero(~same).tolist()
    sizes = _look_at([paths[row] for row in new], partial(check_image, bands=bands))
    defects: dict[str, str] = {}
    for row, size in zip(new, sizes, strict=True):
        if isinstance(size, str):
            defects[paths[row]] = size
            rows["length"][row] = -1
        else:
            rows[["width", "height"]][row] = size
    if len(defects) < len(new):
        whole = rows[rows["length"] >= 0]
        _remember(record, whole[whole["name"].argsort()])
    return defects, rows


def _stamps(paths: Sequence[str], prefix: str) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields each file's row, without the image's size."""
    for path in paths:
        name = os.fsencode(f"{_VERSION} {path.removeprefix(prefix)}")
        key = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest())
        try:
            status = os.stat(path)
        except OSError:  # looking at it will tell
            yield key, -1, -1, 0, 0
        else:
            yield key, status.st_size, status.st_mtime_ns, 0, 0


def _describe(file: Path, bands: Bands | None) -> dict[str, Any]:
    """Decodes an image as training sees it; returns its size, PIL's names and a hash of it."""
    if bands is not None:
        image = read_bands(file, bands)
        kind = {"format": file.suffix, "mode": f"{bands[0]} x {bands[1]} bits"}
    else:
        with open_image(file) as opened:
            image = decode(opened, file)
            kind = {"format": opened.format or "", "mode": opened.mode}
    _, height, width = image.shape
    digest = hashlib.blake2b(repr((width, height)).encode(), digest_size=16)
    digest.update(image.permute(1, 2, 0).contiguous().numpy().data)
    return {"width": width, "height": height, "pixels": digest.hexdigest(), **kind}


def _look_at(paths: Sequence[str], look: Callable[[Path], T]) -> Iterator[T | str]:
    """Yields what ``look`` returns of each file, or the reason why the file cannot be read."""
    workers = min(usable_cores(), _MOST_PROCESSES) if len(paths) > _WORTH_PROCESSES else 0
    context = None
    with contextlib.suppress(LocalError):  # the run's own loaders fail likewise, and say why
        context = worker_context(workers) if workers else None
    # workers of a loader end when this process is killed, which those of other pools do not
    loader = DataLoader(
        cast("Dataset[str]", paths),
        batch_size=_AT_ONCE,
        num_workers=workers if context else 0,
        multiprocessing_context=context,
        collate_fn=partial(_outcomes, look),
        generator=torch.Generator(),  # which it draws from, and not from the run's
    )
    with progress_bar(len(paths), text="checking images") as bar:
        for outcomes in loader:
            bar.update(len(outcomes))
            yield from outcomes


def _outcomes(look: Callable[[Path], T], paths: Sequence[str]) -> list[T | str]:
    outcomes: list[T | str] = []
    for path in paths:
        try:
            outcomes.append(look(Path(path)))
        except UnreadableFileError as error:
            outcomes.append(reason(error))
    return outcomes


def _record_of(root: str) -> Path:
    """Returns the file for what is known of a folder of images."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = os.fsencode(os.path.abspath(root))
    name = hashlib.blake2b(place, digest_size=12).hexdigest()
    return Path(caches, __name__.partition(".")[0], f"{name}.checked.npy")


def _recall(record: Path) -> NDArray[np.void]:
    """Reads an earlier check's rows, sorted by ``name``; one row of zeros if unreadable."""
    with contextlib.suppress(Exception):  # whatever NumPy makes of a damaged file
        known = np.asarray(np.load(record))
        if known.dtype == ROW and known.ndim == 1 and len(known):
            return known
    return np.zeros(1, ROW)


def _remember(record: Path, known: NDArray[np.void]) -> None:
    """Replaces the record atomically; on failure, the next check reads every file again."""
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(record) as partial_file:
            np.save(partial_file, known)


def survey(root: Path, files: Sequence[ImageFile], bands: Bands | None = None) -> dict[str, Any]:
    """Describes image files for JSON: classes, unreadable files, duplicates, sizes, formats."""
    prefix = prefix_of(root)
    unreadable: list[dict[str, str]] = []
    images: list[dict[str, Any]] = []
    alike = defaultdict[str, list[dict[str, str]]](list)
    outcomes = _look_at([file.path for file in files], partial(_describe, bands=bands))
    for file, outcome in zip(files, outcomes, strict=True):
        path = file.path.removeprefix(prefix)
        place = {"file": path, "split": file.split, "class": file.label}
        if isinstance(outcome, str):
            unreadable.append({**place, "reason": outcome})
        else:
            images.append(outcome)
            alike[outcome["pixels"]].append(place)
    counts = Counter((file.label, file.split) for file in files)
    splits = dict.fromkeys(file.split for file in files)
    return {
        "images": len(files),
        "classes": {
            label: {split: counts[label, split] for split in splits}
            for label in dict.fromkeys(file.label for file in files)
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
        "width": _range([image["width"] for image in images]),
        "height": _range([image["height"] for image in images]),
        "formats": dict(Counter(image["format"] for image in images).most_common()),
        "modes": dict(Counter(image["mode"] for image in images).most_common()),
    }


def _range(values: list[int]) -> dict[str, int] | None:
    return (
        {"min": min(values), "median": median_low(values), "max": max(values)} if values else None
    )
