"""Rows for other programs, as CSV or JSON Lines: written as they come, and read back after an interruption."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TextIO

import numpy as np

from ..errors import UserError, printable
from .files import whole_file

Row = Mapping[str, Any]
"""A value for each column: a text, a list of texts, a float in the precision of float32, a bool, or None."""

ENDINGS = (".csv", ".jsonl")


def ending_of(option: str, path: str) -> str:
    """Returns the ending that decides the format of a file; another one is an error."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"{option} must end with {' or '.join(ENDINGS)}, got '{path}'")
    return ending


class RowWriter:
    """Writes rows to an open text file: ``.csv``, with a line of names, or ``.jsonl``."""

    def __init__(
        self, file: TextIO, columns: Sequence[str], ending: str = ".csv", header: bool = True
    ) -> None:
        self._file = file
        self._columns = columns
        self._is_csv = ending == ".csv"
        if self._is_csv and header:
            file.write(_csv_line(columns))

    @classmethod
    @contextmanager
    def open(
        cls, path: Path | int, columns: Sequence[str], ending: str = ".csv", append: bool = False
    ) -> Iterator[Self]:
        """Opens a file, or a descriptor that stays open; with ``append``, writes behind its rows."""
        mode: Literal["a", "w"] = "a" if append else "w"
        closes, errors = isinstance(path, Path), "backslashreplace"
        with open(path, mode, newline="", closefd=closes, encoding="utf-8", errors=errors) as file:
            yield cls(file, columns, ending, header=not append)

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""
        for row in rows:
            values = [_plain(row[name]) for name in self._columns]
            if self._is_csv:
                self._file.write(_csv_line(values))
            else:
                text = json.dumps(dict(zip(self._columns, values, strict=True)), ensure_ascii=False)
                self._file.write(f"{text}\n")
        self._file.flush()


def resume_rows(path: Path, columns: Sequence[str], ending: str) -> list[Row]:
    """Reads the rows of a file, and removes an interrupted last one from it."""
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        text = file.read()
    is_cut = not text.endswith("\n") or text.count('"') % 2 == 1
    try:
        if ending == ".csv":
            lines = [*csv.reader(io.StringIO(text, newline=""))][: -1 if is_cut else None]
            is_ours = lines[:1] in ([], [list(columns)])
            cells = [[cell or None for cell in line] for line in lines[1:]]
            rows: list[Row] = [dict(zip(columns, line, strict=True)) for line in cells]
        else:
            rows = [json.loads(line) for line in text.split("\n")[:-1]]
            is_ours = all(list(row) == list(columns) for row in rows)
    except (ValueError, TypeError, csv.Error):
        is_ours = False
    if not is_ours:
        raise UserError(
            f"--resume: '{printable(path)}' has other rows or columns; --overwrite begins anew"
        )
    with whole_file(path) as partial, RowWriter.open(partial, columns, ending) as writer:
        writer.write(rows)
    return rows


def _csv_line(values: Sequence[Any]) -> str:
    cells = [
        json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list) else value
        for value in values
    ]
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    # with \n as its line's end, Python's writer would not quote a lone \r
    return line.getvalue().removesuffix("\r\n") + "\n"


def _plain(value: Any) -> Any:
    """Shortens a float32 to the digits that tell it from its neighbours; one that is not finite becomes None."""
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else None
    return value
