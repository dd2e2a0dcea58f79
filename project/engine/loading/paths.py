"""Paths of millions of files in a few bytes each, of which forked loader workers copy nothing."""

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_CODEC = ("utf-8", "surrogateescape")  # in which Python keeps any name
_AT_ONCE = 2**16


class PathBlock:
    """The names of files as one block of bytes, each below its folder.

    Of a list of strings, each worker copies what it reads, as Python counts references in the strings themselves.
    """

    def __init__(self) -> None:
        self._folders: list[str] = []
        self._firsts: list[int] = []  # rows, one for each folder
        self._text, self._ends = bytearray(), array("I", [0])

    def add(self, folder: str | Path, names: Iterable[str]) -> "Paths":
        """Adds files by their names below a folder; an absolute name stays as it is."""
        first = len(self._ends) - 1
        self._folders.append(os.path.join(folder, ""))
        self._firsts.append(first)
        for name in names:
            self._text += name.encode(*_CODEC)
            self._ends.append(len(self._text))
        return Paths(self, torch.arange(first, len(self._ends) - 1, dtype=torch.int32))

    def path(self, row: int, below: str = "") -> str:
        """The path of a row, without the beginning ``below`` of its folder."""
        name = str(self._text[self._ends[row] : self._ends[row + 1]], *_CODEC)
        folder = self._folders[bisect_right(self._firsts, row) - 1]
        return name if name.startswith(os.sep) else folder.removeprefix(below) + name

    def __getstate__(self) -> dict[str, Any]:  # as tensors, which torch maps from a file
        text, ends = torch.frombuffer(self._text, dtype=torch.uint8), torch.frombuffer(self._ends, dtype=torch.uint32)
        return self.__dict__ | {"_text": text, "_ends": ends}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {name: state[name].numpy() for name in ("_text", "_ends")}


class Paths(Sequence[Path]):
    """Some paths of a block, by their rows, int32 (N,)."""

    def __init__(self, block: PathBlock, rows: Tensor) -> None:
        self.block, self.rows = block, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        row = self.rows.numpy()[index]  # quicker than of a tensor
        return self.take(index) if isinstance(index, slice) else Path(self.block.path(int(row)))

    def __iter__(self) -> Iterator[Path]:
        return map(Path, self.strings())

    def take(self, places: Any) -> "Paths":
        """Those at some places: indices, a slice or a mask."""
        return Paths(self.block, self.rows[places])

    def strings(self, below: str | Path = "") -> Iterator[str]:
        """Yields the paths as text, as they were given; those that begin with the folder ``below``, without it."""
        prefix = os.path.join(below, "")
        for rows in torch.split(self.rows, _AT_ONCE):
            yield from (self.block.path(row, prefix) for row in rows.tolist())


def joined(parts: Iterable[Paths]) -> Paths:
    """All of these paths, which must be of one block."""
    blocks, rows = zip(*((part.block, part.rows) for part in parts), strict=True)
    (block,) = {*blocks}
    return Paths(block, torch.cat(rows))
