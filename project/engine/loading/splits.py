"""Splits samples into training, validation and test sets by hashes of their names."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from unicodedata import normalize

import numpy as np

from ..errors import UserError, printable
from .scan import spelt

SPLITS = ("train", "val", "test")


def stratified_split(
    labels: Sequence[int], fractions: Mapping[str, float], seed: int, class_names: Sequence[str]
) -> dict[str, list[int]]:
    """Sends exactly the same share of every class to each split, for a dataset that does not grow.

    ``fractions`` are the shares of the splits that are cut off ``train``, in (0, 1). Returns the
    positions of each split's samples, ascending.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        members[label].append(position)
    splits: dict[str, list[int]] = {"train": [], **{split: [] for split in fractions}}
    for label, positions in members.items():
        _require_enough(len(positions), fractions, class_names[label])
        positions = sorted(positions, key=lambda position: _digest(seed, str(position), 16))
        for place, (split, fraction) in enumerate(fractions.items()):
            # every split gets at least one, those still to come and ``train`` too
            most = len(positions) - (len(fractions) - place)
            count = min(max(1, round(fraction * len(members[label]))), most)
            splits[split] += positions[:count]
            positions = positions[count:]
        splits["train"] += positions
    return {split: sorted(positions) for split, positions in splits.items()}


def hashed_split(
    names: Iterable[str], fractions: Mapping[str, float], seed: int, class_name: str
) -> dict[str, list[int]]:
    """Cuts a class into splits by the hash of each file's own name, so that a class can grow.

    Each split takes a range of the hashes as wide as its fraction. If it would be left empty, the
    file with the nearest hash stands in, until one with a nearer hash comes. Only such files ever
    move when others are added; once every split has a file of its own, no file of the class moves.
    """
    ranks = np.fromiter((_rank(seed, name) for name in names), np.float64)
    _require_enough(len(ranks), fractions, class_name)
    order = ranks.argsort(kind="stable")
    ends = [0]
    for place, limit in enumerate(accumulate(fractions.values())):
        below = int(np.searchsorted(ranks, limit, sorter=order))
        most = len(order) - (len(fractions) - place)
        ends.append(min(max(below, ends[-1] + 1), most))
    ranges = zip([*fractions, "train"], ends, [*ends[1:], len(order)], strict=True)
    return {split: np.sort(order[start:end]).tolist() for split, start, end in ranges}


def cut_classes(
    names: Mapping[str, Iterable[str]], fractions: Mapping[str, float], seed: int
) -> dict[str, dict[str, list[int]]]:
    """Cuts each class by :func:`hashed_split`; returns its positions for each split and class."""
    parts = {name: hashed_split(members, fractions, seed, name) for name, members in names.items()}
    splits = ("train", *fractions)
    return {split: {name: part[split] for name, part in parts.items()} for split in splits}


def cut_groups(
    groups: Mapping[str, Sequence[str]],
    fractions: Mapping[str, float],
    seed: int,
    fold: int = 1,
    folds: int = 1,
) -> dict[str, dict[str, list[int]]]:
    """Cuts classes by the hashes of their images' groups, none of which is divided.

    For each class, ``groups`` has the name of each image's group. A class of three groups or more
    has a group in each split: if a split would be left without one, the groups with the next hashes
    stand in. Only in such small classes does a group ever move when others are added. With
    ``folds``, each group is in the first split, a fraction of 1 / ``folds``, in one fold.
    """
    members = {name: set(of_class) for name, of_class in groups.items()}
    ranks = {group: _rank(seed, group) for of_class in members.values() for group in of_class}
    limits = [*zip(fractions, accumulate(fractions.values()), strict=True)]
    places: dict[str, str] = {}
    if folds > 1:
        (first, _), *limits = limits
        parts = [f"fold {number}" for number in range(1, folds + 1)]
        of_folds = {group: parts[int(rank * folds)] for group, rank in ranks.items()}
        _fill(of_folds, parts, members, ranks)
        places = {group: first for group, part in of_folds.items() if part == parts[fold - 1]}
        members = {name: of_class - places.keys() for name, of_class in members.items()}
        ranks = {group: (rank - (fold - 1) / folds) % 1.0 for group, rank in ranks.items()}
    for group in ranks.keys() - places.keys():
        places[group] = next((part for part, end in limits if ranks[group] < end), "train")
    _fill(places, [*(part for part, _ in limits), "train"], members, ranks)
    return {
        split: {
            name: [at for at, group in enumerate(of_class) if places[group] == split]
            for name, of_class in groups.items()
        }
        for split in ("train", *fractions)
    }


def group_name(expression: str, path: str) -> str:
    """Returns what a regular expression, or its first group, matches in a path."""
    try:
        match = re.search(spelt(expression), spelt(path))
    except re.error as error:
        raise UserError(
            f"--data.group: '{expression}' is no regular expression ({error})"
        ) from error
    if match is None:
        raise UserError(f"--data.group: '{expression}' finds nothing in '{printable(path)}'")
    return match[min(1, match.re.groups)] or ""


def _fill(
    places: dict[str, str],
    parts: Sequence[str],
    members: Mapping[str, Collection[str]],
    ranks: Mapping[str, float],
) -> None:
    """Moves groups into parts that have none of a class, in the order of their hashes.

    A part takes the first group of those behind it, which may take the next in turn; where there is
    none behind, the last of those before it. No other class loses its only group in a part.
    """
    for name, groups in sorted(members.items(), key=lambda of_class: len(of_class[1])):
        others = [of_class for other, of_class in members.items() if other != name]
        for step in (1, -1):
            ordered = sorted(groups, key=lambda group: (ranks[group], group))[::step]
            for part in parts[::step]:
                if all(places[group] != part for group in groups):
                    behind = parts[parts.index(part) :: step]
                    for group in ordered:
                        if places[group] in behind and _is_spare(group, places, others):
                            places[group] = part
                            break
        if empty := [part for part in parts if part not in map(places.get, groups)]:
            raise UserError(
                f"class '{name}' has no image in {empty[0]}: its {len(groups)} images or groups are"
                " too few, or those of other classes, too; add some or remove the class"
            )


def _is_spare(group: str, places: Mapping[str, str], classes: Iterable[Collection[str]]) -> bool:
    """Returns True if each of the classes that have a group has another one in its part."""
    shared = (groups for groups in classes if group in groups)
    return all(Counter(map(places.get, groups))[places[group]] > 1 for groups in shared)


def _rank(seed: int, name: str) -> float:
    """Hashes a name to a number that is uniform in [0, 1), in steps of 2^-53, which are exact."""
    return (int.from_bytes(_digest(seed, name, 8)) >> 11) * 2.0**-53


def _digest(seed: int, name: str, size: int) -> bytes:
    """Hashes a name in Unicode's composed form, as file systems spell names in different ways."""
    return blake2b(f"{seed}/{normalize('NFC', name)}".encode(), digest_size=size).digest()


def _require_enough(count: int, fractions: Mapping[str, float], class_name: str) -> None:
    if count <= len(fractions):
        raise UserError(
            f"class '{class_name}' has {count} image(s), too few for the {len(fractions) + 1}"
            f" splits {', '.join(['train', *fractions])}; add images or remove the class"
        )
