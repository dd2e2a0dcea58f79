"""Cutting one collection of samples into training, validation and test sets."""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

from project.errors import UserError

SPLITS = ("train", "val", "test")


def stratified_split(
    names: Sequence[str], labels: Sequence[int], fractions: dict[str, float], *, seed: int, class_names: Sequence[str]
) -> dict[str, list[int]]:
    """Sends the same share of every class to each split.

    Where a sample goes is decided by a hash of its name, so the result is the same on every machine and in any order of
    listing, and a file that is added later moves at most a few others.

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
        if len(positions) < len(splits):
            raise UserError(
                f"class '{class_names[label]}' has {len(positions)} image(s), too few for the {len(splits)} splits"
                f" {', '.join(splits)}; add images or remove the class"
            )
        positions = sorted(positions, key=lambda position: _rank(seed, names[position]))
        for left, (name, fraction) in zip(range(len(fractions), 0, -1), fractions.items(), strict=True):
            # every split gets one at least, those still to come and ``train`` too
            count = min(max(1, round(fraction * len(members[label]))), len(positions) - left)
            splits[name] += positions[:count]
            positions = positions[count:]
        splits["train"] += positions
    return {name: sorted(positions) for name, positions in splits.items()}


def _rank(seed: int, name: str) -> bytes:
    return blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
