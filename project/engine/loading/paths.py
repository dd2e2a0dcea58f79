"""Paths of millions of files in a few bytes each, of which forked loader workers copy nothing."""

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CODEC = ("utf-8", "surrogateescape")
"""The codec that keeps any name of a file."""

_AT_ONCE = 2**16
_ARRAYS = {"_text": torch.uint8, "_ends": torch.uint32, "_firsts": torch.uint32}


class PathBlock:
    """The names of files as one block of bytes, each below its folder.

    Of a list of strings, each worker copies what it reads, as Python counts references in the
    strings themselves.
    """

    def __init__(self) -> None:
        self._folders: list[str] = []
        self._firsts = array("I")  # rows, one for each folder
        self._text, self._ends = bytearray(), array("I", [0])

    def add(self, folder: str | Path, names: Iterable[str]) -> "Paths":
        """Adds files by their names below a folder; an absolute name stays as it is."""
        first = len(self._ends) - 1
        self._folders.append(os.path.join(folder, ""))
        self._firsts.append(first)
        for name in names:
            self._text += name.encode(*CODEC)
            self._ends.append(len(self._text))
        return Paths(self, torch.arange(first, len(self._ends) - 1, dtype=torch.int32))

    def paths(self, rows: NDArray[np.int32], below: str = "") -> Iterator[str]:
        """Yields the paths of rows, without the beginning ``below`` of their folders."""
        ends, text, folders = np.frombuffer(self._ends, np.uint32), self._text, self._folders
        of = np.frombuffer(self._firsts, np.uint32).searchsorted(rows, "right") - 1
        for start, end, folder in zip(
            ends[rows].tolist(), ends[rows + 1].tolist(), of.tolist(), strict=True
        ):
            name = str(text[start:end], *CODEC)
            yield name if name.startswith(os.sep) else folders[folder].removeprefix(below) + name

    def __getstate__(self) -> dict[str, Any]:  # as tensors, which torch maps from a file
        arrays = {
            name: torch.frombuffer(getattr(self, name), dtype=dtype)
            for name, dtype in _ARRAYS.items()
        }
        return self.__dict__ | arrays

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {name: state[name].numpy() for name in _ARRAYS}


class Paths(Sequence[Path]):
    """Some paths of a block, by their rows, int32 (N,)."""

    def __init__(self, block: PathBlock, rows: Tensor) -> None:
        self.block, self.rows = block, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.take(index)
        return Path(*self.block.paths(self.rows.numpy()[[index]]))

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.strings())

    def take(self, places: Any) -> "Paths":
        """Those at some places: indices, a slice or a mask."""
        return Paths(self.block, self.rows[places])

    def strings(self, below: str | Path = "") -> Iterator[str]:
        """Yields the paths as text, relative to the folder ``below`` if they are in it."""
        prefix = os.path.join(below, "")
        for rows in torch.split(self.rows, _AT_ONCE):
            yield from self.block.paths(rows.numpy(), prefix)


def joined(parts: Iterable[Paths]) -> Paths:
    """All of these paths, which must be of one block."""
    blocks, rows = zip(*((part.block, part.rows) for part in parts), strict=True)
    (block,) = {*blocks}
    return Paths(block, torch.cat(rows))


class ClassFiles(Mapping[str, Paths]):
    """The files of each class of a split in the order of labels; ``paths`` has all."""

    def __init__(self, classes: Mapping[str, Paths]) -> None:
        self.paths = joined(classes.values())
        self.counts = {name: len(files) for name, files in classes.items()}
        self._ends = dict(zip(classes, accumulate(self.counts.values()), strict=True))

    def __getitem__(self, name: str) -> Paths:
        end = self._ends[name]
        return self.paths.take(slice(end - self.counts[name], end))

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)
