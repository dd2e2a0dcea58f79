"""Splits samples into training, validation and test sets by hashes of their names."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from ..exact._errors import UserError

SPLITS = ("train", "val", "test")


def stratified_split(
    labels: Sequence[int], fractions: Mapping[str, float], seed: int, class_names: Sequence[str]
) -> dict[str, list[int]]:
    """Sends exactly the same share of every class to each split, for a dataset that does not grow.

    ``fractions`` are the shares of the splits that are cut off ``train``, in (0, 1). Returns the
    positions of each split's samples, ascending.
    """
    members = defaultdict[int, list[int]](list)
    for position, label in enumerate(labels):
        members[label].append(position)
    splits: dict[str, list[int]] = {split: [] for split in ("train", *fractions)}
    for label, positions in members.items():
        positions.sort(key=lambda position: _digest(seed, str(position), 16))
        ranks = (np.arange(len(positions)) + 0.5) / len(positions)
        for split, part in _cut(ranks, fractions, class_names[label]).items():
            splits[split] += positions[part]
    return {split: sorted(positions) for split, positions in splits.items()}


def hashed_split(
    names: Iterable[str],
    fractions: Mapping[str, float],
    seed: int,
    class_name: str,
    start: float = 0.0,
) -> dict[str, list[int]]:
    """Cuts a class into splits by the hash of each file's own name, so that a class can grow.

    Each split takes a range of the hashes as wide as its fraction, the first from ``start``, in
    [0, 1), on. A split whose range has no file takes the one with the nearest hash, until a nearer
    one is added. Only such files ever move when others are added; once every split has a file of
    its own, no file of the class moves.
    """
    # integers below 2^53, which are exact
    hashes = (int.from_bytes(_digest(seed, name, 8)) >> 11 for name in names)
    ranks = (np.fromiter(hashes, np.float64) / 2**53 - start) % 1.0
    order = ranks.argsort(kind="stable")
    parts = _cut(ranks[order], fractions, class_name)
    return {split: np.sort(order[part]).tolist() for split, part in parts.items()}


def _cut(
    ranks: NDArray[np.float64], fractions: Mapping[str, float], class_name: str
) -> dict[str, slice]:
    """Cuts ascending ranks in [0, 1) into a range for each split, none of which is empty."""
    if len(ranks) <= len(fractions):
        raise UserError(
            f"class '{class_name}' has {len(ranks)} images or groups, too few for the"
            f" {len(fractions) + 1} splits {', '.join(['train', *fractions])}; add images or remove"
            " the class"
        )
    ends = [0]
    for place, limit in enumerate(accumulate(fractions.values())):
        most = len(ranks) - (len(fractions) - place)
        ends.append(min(max(int(ranks.searchsorted(limit)), ends[-1] + 1), most))
    return dict(zip([*fractions, "train"], map(slice, ends, [*ends[1:], len(ranks)]), strict=True))


def grouped_split(
    labels: Sequence[str],
    groups: Sequence[str],
    fractions: Mapping[str, float],
    seed: int,
    fold: int = 1,
    folds: int = 1,
) -> list[str]:
    """Returns the split of each sample by its label and group; no group is divided.

    The groups of a class are cut as :func:`hashed_split` cuts files; a sample without a group has
    its name as one. A group of several classes goes where the smallest of these puts it. With
    ``folds``, each group is in the first split, a fraction of 1 / ``folds``, in exactly one fold,
    which ``fold`` counts from 1.
    """
    if not fractions:  # each split is there: no name need be hashed
        return ["train"] * len(labels)
    members = defaultdict[str, set[str]](set)
    for label, group in zip(labels, groups, strict=True):
        members[label].add(group)
    split_of: dict[str, str] = {}
    for label, of_class in sorted(members.items(), key=lambda item: len(item[1])):
        names = sorted(of_class)
        cut = fractions
        if folds > len(names):
            raise UserError(
                f"class '{label}' has {len(names)} images or groups, too few for {folds} folds"
            )
        if folds > 1:
            test, *others = fractions
            parts = {f"fold {number}": 1 / folds for number in range(1, folds)}
            numbered = [*hashed_split(names, parts, seed, label).values()]
            tested = [names[place] for place in numbered[fold - 1]]
            split_of = dict.fromkeys(tested, test) | split_of
            names = sorted(of_class.difference(tested))
            cut = {split: fractions[split] for split in others}
        for split, places in hashed_split(names, cut, seed, label, fold / folds % 1).items():
            for place in places:
                split_of.setdefault(names[place], split)
    splits = [split_of[group] for group in groups]
    filled = {*zip(splits, labels, strict=True)}
    for split in ("train", *fractions):
        if empty := [label for label in members if (split, label) not in filled]:
            raise UserError(
                f"class '{empty[0]}' has no image in {split}, as it shares its groups with other"
                " classes; use another split_seed, or add images"
            )
    return splits


def _digest(seed: int, name: str, size: int) -> bytes:
    """Hashes a name in Unicode's composed form, as file systems spell names in different ways."""
    return blake2b(f"{seed}/{normalize('NFC', name)}".encode(), digest_size=size).digest()
