"""Rows as CSV for other programs: written as they come, and read back after an interruption."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self, TextIO

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError, printable
from .files import whole_file

Row = Mapping[str, object]
"""A value for each column: a text, a list of texts, a float, a bool, or None."""


class RowWriter:
    """Writes rows to an open text file; floats in the precision of float32."""

    def __init__(self, file: TextIO, columns: Sequence[str], header: bool) -> None:
        self._file = file
        self._writer = csv.DictWriter(file, columns, lineterminator="\n")
        if header:
            self._writer.writeheader()

    @classmethod
    @contextmanager
    def open(cls, path: Path | int, columns: Sequence[str], append: bool = False) -> Iterator[Self]:
        """Opens a file, or a descriptor that stays open; ``append`` writes behind its rows."""
        closes = isinstance(path, Path)
        with open(
            path,
            "a" if append else "w",
            newline="",
            closefd=closes,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            yield cls(file, columns, header=not append)

    def write(self, rows: Iterable[Row]) -> None:
        """Appends rows."""
        for row in rows:
            self._writer.writerow({name: _cell(value) for name, value in row.items()})
        self._file.flush()


def resume_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """Reads the rows of a file, and removes an interrupted last one from it."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        text = file.read()
    is_cut = not text.endswith("\n") or text.count('"') % 2 == 1
    lines = list(csv.reader(io.StringIO(text, newline="")))[: -1 if is_cut else None]
    if lines and (lines[0] != list(columns) or {*map(len, lines)} != {len(columns)}):
        raise UserError(
            f"--resume: '{printable(path)}' has other rows or columns; --overwrite begins anew"
        )
    rows: list[Row] = [
        dict(zip(columns, (cell or None for cell in line), strict=True)) for line in lines[1:]
    ]
    with whole_file(path) as partial, RowWriter.open(partial, columns) as writer:
        writer.write(rows)
    return rows


@contextmanager
def open_vectors(path: Path) -> Iterator[BinaryIO]:
    """Opens a ``.npy`` file for :func:`write_vectors`, which appears whole or not at all."""
    with whole_file(path) as partial, open(partial, "wb") as file:
        yield file


def write_vectors(file: BinaryIO, vectors: NDArray[np.float32], count: int) -> None:
    """Appends vectors, float32 (N, features), to a file of ``count`` in all."""
    if file.tell() == 0:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, vectors.shape[1])}
        np.lib.format.write_array_header_1_0(file, header)
    file.write(vectors.astype("<f4").tobytes())


def _cell(value: object) -> object:
    """Shortens a float32 to the digits that tell it from its neighbours; NaN becomes nothing."""
    if isinstance(value, bool | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else None
    return value
