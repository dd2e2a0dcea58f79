"""What image files hold, as plain data: classes, broken files, duplicates, sizes and kinds of images."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

from .checks import Facts, read_facts

_BRIGHT = 64  # on the 0-255 scale; below it, 16 bits hold values of 14 or fewer


class Entry(NamedTuple):
    """A file, where it is used, and what it holds."""

    file: Path
    split: str
    label: str
    facts: Facts


def survey(root: Path, splits: dict[str, dict[str, list[Path]]]) -> dict[str, Any]:
    """Reads every file once.

    Args:
        root: What the names of files shall be relative to, where they lie in it.
        splits: The files of each class in each split.

    Returns:
        Plain data for JSON, the same whenever the files are.
    """
    places = [
        (file, split, name) for split, classes in splits.items() for name, files in classes.items() for file in files
    ]
    facts = read_facts([file for file, _, _ in places])
    entries = [Entry(*place, found) for place, found in zip(places, facts, strict=True)]
    return {
        "images": len(entries),
        "classes": {name: {split: len(splits[split][name]) for split in splits} for name in splits["train"]},
        "unreadable": [
            {**_place(root, entry), "reason": entry.facts.defect} for entry in entries if entry.facts.defect
        ],
        "duplicates": list(_duplicates(root, entries)),
        "dark": [
            {**_place(root, entry), "brightest": entry.facts.brightest}
            for entry in entries
            if entry.facts.brightest < _BRIGHT
        ],
        "holes": [_place(root, entry) for entry in entries if entry.facts.hole],
        **_images([entry.facts for entry in entries if not entry.facts.defect]),
    }


def _place(root: Path, entry: Entry) -> dict[str, str]:
    file = entry.file.relative_to(root) if entry.file.is_relative_to(root) else entry.file
    return {"file": file.as_posix(), "split": entry.split, "class": entry.label}


def _duplicates(root: Path, entries: list[Entry]) -> Iterator[dict[str, Any]]:
    """Groups of files that training sees as the same image; copies of a file are among them."""
    alike: dict[bytes, list[Entry]] = defaultdict(list)
    for entry in entries:
        if not entry.facts.defect:
            alike[entry.facts.pixels].append(entry)
    for group in alike.values():
        if len(group) > 1:
            yield {
                "same": "bytes" if len({entry.facts.content for entry in group}) == 1 else "pixels",
                "across_splits": len({entry.split for entry in group}) > 1,
                "across_classes": len({entry.label for entry in group}) > 1,
                "files": [_place(root, entry) for entry in group],
            }


def _images(facts: list[Facts]) -> dict[str, Any]:
    return {
        "width": _range([fact.width for fact in facts]),
        "height": _range([fact.height for fact in facts]),
        "formats": dict(Counter(fact.format for fact in facts).most_common()),
        "modes": dict(Counter(fact.mode for fact in facts).most_common()),
        "animated": sum(fact.animated for fact in facts),
        "turned_by_exif": sum(fact.turned for fact in facts),
    }


def _range(values: list[int]) -> dict[str, int] | None:
    return {"min": min(values), "median": median_low(values), "max": max(values)} if values else None
