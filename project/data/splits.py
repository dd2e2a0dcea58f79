"""Cutting one collection of samples into training, validation and test sets."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate

from project.engine.errors import UserError

SPLITS = ("train", "val", "test")


def stratified_split(
    names: Sequence[str], labels: Sequence[int], fractions: dict[str, float], *, seed: int, class_names: Sequence[str]
) -> dict[str, list[int]]:
    """Sends exactly the same share of every class to each split, for a dataset that does not grow.

    A hash of the samples' names decides, so the result is the same on every machine and in any order of listing.

    Args:
        names: A name for each sample, unique among its class.
        labels: The class of each sample.
        fractions: The share of each split that is cut off, in (0, 1); the rest is ``train``.
        seed: Another seed gives another split.
        class_names: What to call the classes in an error.

    Returns:
        The positions of each split's samples, ascending.

    Raises:
        UserError: A class has fewer samples than there are splits.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        members[label].append(position)
    splits: dict[str, list[int]] = {"train": [], **{name: [] for name in fractions}}
    for label, positions in members.items():
        _require_enough(len(positions), list(splits), class_names[label])
        positions = sorted(positions, key=lambda position: _rank(seed, names[position]))
        for left, (name, fraction) in zip(range(len(fractions), 0, -1), fractions.items(), strict=True):
            # every split gets one at least, those still to come and ``train`` too
            count = min(max(1, round(fraction * len(members[label]))), len(positions) - left)
            splits[name] += positions[:count]
            positions = positions[count:]
        splits["train"] += positions
    return {name: sorted(positions) for name, positions in splits.items()}


def hashed_split(
    names: Sequence[str], fractions: dict[str, float], *, seed: int, class_name: str
) -> dict[str, list[int]]:
    """Cuts a class into splits by the hash of each file's own name, so that a class can grow.

    Each split takes a range of the hashes as wide as its fraction, so its share of a class is about that fraction.
    Where a split would be left empty, the file with the nearest hash stands in, until one with a nearer hash comes.
    Only such files ever enter or leave the first split when others are added. Once every split has a file of its own,
    which a class of 50 nearly always has, no file of the class moves again.

    More cannot be had from names alone: if any three files had a test image among them, and this could never become a
    training image, then no class could have more than two training images.

    Args:
        names: The files' names, unique.
        fractions: The share of each split that is cut off, in (0, 1); the rest is ``train``.
        seed: Another seed gives another split.
        class_name: What to call the class in an error.

    Returns:
        The positions of each split's files, ascending.

    Raises:
        UserError: There are fewer files than splits.
    """
    _require_enough(len(names), ["train", *fractions], class_name)
    ranked = sorted((_hash(seed, name), name, position) for position, name in enumerate(names))
    ends = [0]
    for left, limit in zip(range(len(fractions), 0, -1), accumulate(fractions.values()), strict=True):
        below = bisect_left(ranked, limit, key=lambda rank: rank[0])
        ends.append(min(max(below, ends[-1] + 1), len(names) - left))
    ranges = zip([*fractions, "train"], ends, [*ends[1:], len(names)], strict=True)
    return {split: sorted(position for *_, position in ranked[start:end]) for split, start, end in ranges}


def _hash(seed: int, name: str) -> float:
    """Uniform in [0, 1), in steps of 2^-53, which are exact."""
    return (int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()) >> 11) * 2.0**-53


def _require_enough(count: int, splits: Sequence[str], class_name: str) -> None:
    if count < len(splits):
        raise UserError(
            f"class '{class_name}' has {count} image(s), too few for the {len(splits)} splits {', '.join(splits)};"
            " add images or remove the class"
        )


def _rank(seed: int, name: str) -> bytes:
    return blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()


def cut_classes(
    names: Mapping[str, Sequence[str]], fractions: dict[str, float], seed: int
) -> dict[str, dict[str, list[int]]]:
    """Cuts each class by :func:`hashed_split`.

    Args:
        names: The names of each class's samples.
        fractions: The share of each split that is cut off; the rest is ``train``.
        seed: Another seed gives another split.

    Returns:
        For each split and class, the positions in ``names``.
    """
    parts = {name: hashed_split(members, fractions, seed=seed, class_name=name) for name, members in names.items()}
    return {split: {name: part[split] for name, part in parts.items()} for split in ("train", *fractions)}
