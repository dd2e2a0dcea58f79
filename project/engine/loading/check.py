"""The check of image files before training: unreadable ones, sizes, duplicates; a record makes later checks fast."""

import contextlib
import hashlib
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple, cast

import torch
from torch.utils.data import DataLoader

from ..errors import UnreadableFileError, UserError, listed
from ..hardware import usable_cores
from ..preprocessing import Bands
from ..run.files import whole_file
from ..run.progress import Progress
from .decode import check_image, decode, named, open_image, read_bands, reason, upright_size
from .scan import ClassFiles

_VERSION = 3  # of the record; another number where the check or the facts change
_WORTH_PROCESSES = 4096  # so many new files take about as long as starting processes does
_MOST_PROCESSES = 16
_AT_ONCE = 64
_UNSURE_NS = 2 * 10**9  # a file may change twice within a tick of the file system's clock

Stamp = tuple[int, int]
"""The length of a file in bytes, and when it was changed, in nanoseconds."""


class Facts(NamedTuple):
    """Findings about one file; ``format``, ``mode`` and ``pixels`` only where all of it was decoded."""

    defect: str | None  # the reason why it cannot be read as an image, and then the rest is empty
    width: int = 0  # of the upright image, in pixels; 0 where nobody asked
    height: int = 0
    format: str = ""  # of the content, whatever the file is called, as in "JPEG"
    mode: str = ""  # PIL's name of the kind of pixels, as in "RGB"
    pixels: str = ""  # a hash of the upright image in RGB, as training sees it; of the file where it is used as stored
    stamp: Stamp | None = None  # of the file, just before; None where it was not there


def check_files(
    files: Sequence[Path], root: Path, bands: Bands | None = None, sizes: bool = False, pixels: bool = False
) -> list[Facts]:
    """Checks those image files below ``root`` that are new or have changed since they were last checked.

    A file is the same as long as its name, its length and its time of change are. Broken ones are checked each time.
    ``sizes`` asks for widths and heights; ``pixels`` and ``bands`` decode each image in full, which finds damage inside.
    """
    record, prefix = _record_of(f"{root}{bands or ''}"), f"{root}{os.sep}"
    names = [str(file).removeprefix(prefix) for file in files]
    sure_before = time.time_ns() - _UNSURE_NS
    stamps = [_stamp(file) for file in files]
    known, nothing = _recall(record), Facts(None)
    facts = [known.get(name, nothing) for name in names]
    new = [
        position
        for position, (fact, stamp) in enumerate(zip(facts, stamps, strict=True))
        if stamp is None or fact.stamp != stamp or (sizes and not fact.width) or (pixels and not fact.pixels)
    ]
    found = _look_at([files[position] for position in new], bands, sizes, pixels)
    for position, fact in zip(new, found, strict=True):
        facts[position] = fact._replace(stamp=stamps[position])
    if any(facts[position].defect is None for position in new):
        rows = zip(names, facts, strict=True)
        sure = {n: f for n, f in rows if f.stamp is not None and f.stamp[1] < sure_before and f.defect is None}
        _remember(record, sure)
    return facts


def _stamp(path: Path) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:  # looking at it will tell
        return None
    return found.st_size, found.st_mtime_ns


def _look(file: Path, bands: Bands | None, sizes: bool, pixels: bool) -> Facts:
    try:
        if bands is not None:
            size, mode = read_bands(file, bands).shape[:0:-1], f"{bands[0]} x {bands[1]} bits"
            return Facts(None, size[0], size[1], file.suffix, mode, hashlib.blake2b(file.read_bytes()).hexdigest())
        check_image(file)
        if not (sizes or pixels):
            return Facts(None)
        with open_image(file) as image, named(file):
            width, height = upright_size(image, file)
            if not pixels:
                return Facts(None, width, height)
            format_, mode = image.format or "", image.mode
            hashed = hashlib.blake2b(repr((width, height)).encode(), digest_size=16)
            hashed.update(decode(image, file).permute(1, 2, 0).contiguous().numpy().data)
            return Facts(None, width, height, format_, mode, hashed.hexdigest())
    except UnreadableFileError as error:
        return Facts(reason(error))


def _look_at(files: Sequence[Path], bands: Bands | None, sizes: bool, pixels: bool) -> Iterator[Facts]:
    """Checks files in threads, and many in processes, as Python's lock keeps threads from working at the same time."""
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


def _look_in_threads(threads: int, look: Any, files: Sequence[Path]) -> list[Facts]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(look, files))


def _record_of(root: str) -> Path:
    """The file for what is known of a folder of images."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = os.fsencode(os.path.abspath(root))
    name = hashlib.blake2b(place, digest_size=12).hexdigest()
    return Path(caches, __name__.partition(".")[0], f"{name}.checked.json")


def _recall(record: Path) -> dict[str, Facts]:
    """Reads what an earlier check found, by name; nothing where the record cannot be read."""
    try:
        version, names, lengths, changed, *columns = json.loads(record.read_bytes())
        if version != _VERSION or len(columns) != len(Facts._fields) - 2:
            return {}
        rows = zip(*columns, zip(lengths, changed, strict=True), strict=True)
        return {name: Facts(None, *row) for name, row in zip(names, rows, strict=True)}
    except (OSError, ValueError, TypeError):
        return {}


def _remember(record: Path, known: Mapping[str, Facts]) -> None:
    """Replaces the record as a whole; where that cannot be, the next check looks at every file again."""
    rows = ((name, *cast(Stamp, fact.stamp), *fact[1:-1]) for name, fact in known.items())
    body = json.dumps([_VERSION, *zip(*rows, strict=True)])
    with contextlib.suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(record) as partial_file:
            partial_file.write_text(body)


def few(broken: Mapping[Path, str]) -> str:
    """Names the first of some broken files, with the reasons, and counts the others."""
    return listed((f"'{file}' ({why})" for file, why in broken.items()), 3)


def leave_out(splits: dict[str, ClassFiles], broken: Mapping[Path, str]) -> dict[str, ClassFiles]:
    """Returns splits without broken files; an error if a class has nothing left to train on, or a split nothing."""
    left = {
        split: {name: [file for file in files if file not in broken] for name, files in classes.items()}
        for split, classes in splits.items()
    }
    for name, files in left["train"].items():
        if not files:
            raise UserError(f"class '{name}' has no training image that can be read: {few(broken)}")
    for split, classes in left.items():
        if not any(classes.values()):
            raise UserError(f"{split} has no image that can be read: {few(broken)}")
    return left


def survey(root: Path, splits: dict[str, ClassFiles], bands: Bands | None = None) -> dict[str, Any]:
    """Describes image files as plain data for JSON: classes, unreadable files, duplicates, sizes and kinds of images."""
    places = [
        (file, {"file": _below(root, file), "split": split, "class": label})
        for split, classes in splits.items()
        for label, files in classes.items()
        for file in files
    ]
    checked = check_files([file for file, _ in places], root, bands, pixels=True)
    unreadable, facts, alike = [], [], defaultdict[str, list[dict[str, str]]](list)
    for (_, place), found in zip(places, checked, strict=True):
        if found.defect is not None:
            unreadable.append({**place, "reason": found.defect})
        else:
            facts.append(found)
            alike[found.pixels].append(place)
    return {
        "images": len(places),
        "classes": {name: {split: len(splits[split][name]) for split in splits} for name in splits["train"]},
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
        "width": _range([fact.width for fact in facts]),
        "height": _range([fact.height for fact in facts]),
        "formats": dict(Counter(fact.format for fact in facts).most_common()),
        "modes": dict(Counter(fact.mode for fact in facts).most_common()),
    }


def _below(root: Path, file: Path) -> str:
    return (file.relative_to(root) if file.is_relative_to(root) else file).as_posix()


def _range(values: list[int]) -> dict[str, int] | None:
    return {"min": min(values), "median": median_low(values), "max": max(values)} if values else None
