"""Paths of millions of files in a few bytes each, of which forked loader workers copy nothing."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


def prefix_of(folder: str | Path) -> str:
    """Returns the beginning of the paths in a folder, which is empty for the working directory."""
    return os.path.join(folder, "").removeprefix(f".{os.sep}")


class Paths(Sequence[Path]):
    """Paths of files, in one tensor of bytes.

    Of a list of strings, each worker copies what it reads, as Python counts references in the
    strings themselves.

    Args:
        root: The beginning of the paths.
        text: uint8 (N, length), the names below the root, padded with zeros.
    """

    def __init__(self, root: str, text: Tensor) -> None:
        self.root = root
        self.text = text

    @classmethod
    def of(cls, names: Iterable[str], root: str | Path = "") -> "Paths":
        """Keeps the names of files below ``root``; an absolute name stays as it is."""
        text = np.array([os.fsencode(name) for name in names], np.bytes_)
        encoded = torch.from_numpy(text.view(np.uint8).reshape(-1, text.itemsize))
        return cls(prefix_of(root), encoded)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.take(index)
        return Path(*self.take([index]).strings())

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.strings())

    def take(self, places: Any) -> "Paths":
        """Selects some paths by indices, a slice or a mask."""
        return Paths(self.root, self.text[places])

    def strings(self, below: str | Path = "") -> Iterator[str]:
        """Yields the paths as text, relative to the folder ``below`` if they are in it."""
        prefix = prefix_of(below)
        names = self.text.numpy().view(f"S{self.text.shape[1]}").ravel()
        for name in map(os.fsdecode, names.tolist()):
            is_absolute = name.startswith(os.sep)
            yield name if is_absolute else (self.root + name).removeprefix(prefix)


def joined(parts: Iterable[Paths]) -> Paths:
    """Concatenates paths below one root."""
    parts = [*parts]
    (root,) = {part.root for part in parts}
    length = max(part.text.shape[1] for part in parts)
    texts = [pad(part.text, (0, length - part.text.shape[1])) for part in parts]
    return Paths(root, torch.cat(texts))


class ClassFiles(Mapping[str, Paths]):
    """The files of each class of a split in the order of labels.

    Attributes:
        paths: All files.
        labels: int64 (N,), the label of each.
    """

    def __init__(self, classes: Mapping[str, Paths]) -> None:
        self.paths = joined(classes.values())
        counts = [*map(len, classes.values())]
        self.labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        ends = [0, *accumulate(counts)]
        self._places = dict(zip(classes, pairwise(ends), strict=True))

    def __getitem__(self, name: str) -> Paths:
        return self.paths.take(slice(*self._places[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
