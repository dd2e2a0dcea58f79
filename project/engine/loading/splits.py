"""Splits of one collection of samples into training, validation and test sets, by hashes of the samples' names."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate

import numpy as np

from ..errors import UserError

SPLITS = ("train", "val", "test")


def stratified_split(
    names: Sequence[str],
    labels: Sequence[int],
    fractions: dict[str, float],
    *,
    seed: int,
    class_names: Sequence[str],
) -> dict[str, list[int]]:
    """Sends exactly the same share of every class to each split, for a dataset that does not grow.

    ``fractions`` are the shares of the splits that are cut off ``train``, in (0, 1); each of ``names`` is unique among
    its class. Returns the positions of each split's samples, ascending: the same in any order of listing.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        members[label].append(position)
    splits: dict[str, list[int]] = {"train": [], **{name: [] for name in fractions}}
    for label, positions in members.items():
        _require_enough(len(positions), fractions, class_names[label])
        positions = sorted(positions, key=lambda position: _digest(seed, names[position], 16))
        for left, (name, fraction) in zip(
            range(len(fractions), 0, -1), fractions.items(), strict=True
        ):
            # every split gets one at least, those still to come and ``train`` too
            count = min(max(1, round(fraction * len(members[label]))), len(positions) - left)
            splits[name] += positions[:count]
            positions = positions[count:]
        splits["train"] += positions
    return {name: sorted(positions) for name, positions in splits.items()}


def hashed_split(
    names: Iterable[str],
    fractions: dict[str, float],
    *,
    seed: int,
    class_name: str,
    least: int = 1,
    turn: float = 0.0,
) -> dict[str, list[int]]:
    """Cuts a class into splits by the hash of each file's own name, so that a class can grow.

    Each split takes a range of the hashes as wide as its fraction. Where it would be left empty, the file with the nearest
    hash stands in, until one with a nearer hash comes. Only such files ever enter or leave the first split when others are
    added; once every split has a file of its own, no file of the class moves again. With ``least`` 0, none stands in.
    The first range begins at ``turn``, in [0, 1).
    """
    hashes = np.fromiter((int.from_bytes(_digest(seed, name, 8)) for name in names), np.uint64)
    if least:
        _require_enough(len(hashes), fractions, class_name)
    # uniform in [0, 1), in steps of 2^-53, which are exact
    ranks = ((hashes >> np.uint64(11)) * 2.0**-53 - turn) % 1.0
    order = ranks.argsort(kind="stable")
    ends = [0]
    for left, limit in zip(
        range(len(fractions), 0, -1), accumulate(fractions.values()), strict=True
    ):
        below = int(np.searchsorted(ranks, limit, sorter=order))
        ends.append(min(max(below, ends[-1] + least), len(order) - least * left))
    ranges = zip([*fractions, "train"], ends, [*ends[1:], len(order)], strict=True)
    return {split: np.sort(order[start:end]).tolist() for split, start, end in ranges}


def cut_classes(
    names: Mapping[str, Iterable[str]],
    fractions: dict[str, float],
    seed: int,
    least: int = 1,
    turn: float = 0.0,
) -> dict[str, dict[str, list[int]]]:
    """Cuts each class by :func:`hashed_split`: for each split and class, the positions in the class's ``names``."""
    parts = {
        name: hashed_split(members, fractions, seed=seed, class_name=name, least=least, turn=turn)
        for name, members in names.items()
    }
    return {
        split: {name: part[split] for name, part in parts.items()}
        for split in ("train", *fractions)
    }


def cut_groups(
    groups: Mapping[str, Sequence[str]],
    fractions: dict[str, float],
    seed: int,
    fold: int = 1,
    folds: int = 1,
) -> dict[str, dict[str, list[int]]]:
    """Cuts classes by the hashes of their images' groups: no group is divided, and none moves when images are added.

    For each class, ``groups`` has the name of each image's group. Returns what :func:`cut_classes` does. With ``folds``,
    each group is in the first split, a fraction of 1 / ``folds``, in one fold.

    Raises:
        UserError: A class has no image in a split; it names a seed for which all classes have.
    """
    distinct = {name: [*dict.fromkeys(members)] for name, members in groups.items()}
    for split, name in _empty(distinct, fractions, seed, folds):
        good = next(
            (other for other in range(1000) if not any(_empty(distinct, fractions, other, folds))),
            None,
        )
        advice = (
            "larger fractions or more groups"
            if good is None
            else f"--data.split_seed {good}, for example,"
        )
        raise UserError(
            f"class '{name}' has no {split} image, as its {len(distinct[name])} images or groups are all in other splits;"
            f" {advice} would give every class some"
        )
    return cut_classes(groups, fractions, seed, least=0, turn=(fold - 1) / folds)


def _empty(
    groups: Mapping[str, Sequence[str]], fractions: dict[str, float], seed: int, folds: int
) -> Iterator[tuple[str, str]]:
    """Yields the splits that are empty in any fold, each with its class; small classes first, as they decide soonest."""
    for name, members in sorted(groups.items(), key=lambda of_class: len(of_class[1])):
        for fold in range(folds):
            parts = hashed_split(
                members, fractions, seed=seed, class_name=name, least=0, turn=fold / folds
            )
            yield from ((split, name) for split, positions in parts.items() if not positions)


def _digest(seed: int, name: str, size: int) -> bytes:
    return blake2b(f"{seed}/{name}".encode(), digest_size=size).digest()


def _require_enough(count: int, fractions: Mapping[str, float], class_name: str) -> None:
    if count <= len(fractions):
        raise UserError(
            f"class '{class_name}' has {count} image(s), too few for the {len(fractions) + 1} splits"
            f" {', '.join(['train', *fractions])}; add images or remove the class"
        )
