"""Rows for other programs, as CSV or JSON Lines: written as they come, and read back after an interruption."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import UserError, printable

Row = Mapping[str, Any]
"""A value for each column: a text, a list of texts, a float in the precision of float32, a bool, or None."""

ENDINGS = (".csv", ".jsonl")


def ending_of(option: str, path: str) -> str:
    """Returns the ending that decides the format of a file; another one is an error."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"{option} must end with {' or '.join(ENDINGS)}, got '{printable(path)}'")
    return ending


class RowWriter:
    """Writes rows to a file, behind those that it has: ``.csv``, with a line of names, or ``.jsonl``.

    With ``on_terminal``, it escapes what would control a terminal.
    """

    def __init__(
        self,
        file: BinaryIO,
        columns: Sequence[str],
        ending: str = ".csv",
        on_terminal: bool = False,
    ) -> None:
        self._file, self._columns, self._ending, self._on_terminal = (
            file,
            columns,
            ending,
            on_terminal,
        )
        if ending == ".csv" and not (file.seekable() and file.tell()):
            self._write(_csv_line(columns))

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""
        values = ([_plain(row[name]) for name in self._columns] for row in rows)
        if self._ending == ".csv":
            self._write("".join(map(_csv_line, values)))
        else:
            lines = (
                json.dumps(dict(zip(self._columns, row, strict=True)), ensure_ascii=False)
                for row in values
            )
            self._write("".join(f"{line}\n" for line in lines))

    def _write(self, text: str) -> None:
        shown = printable(text, keep="\n") if self._on_terminal else text
        self._file.write(shown.encode(errors="backslashreplace"))
        self._file.flush()


def resume_rows(file: BinaryIO, columns: Sequence[str], ending: str) -> list[Row]:
    """Reads the rows of a file and removes what an interruption left of a last one; the next go behind them."""
    file.seek(0)
    content = file.read()
    end = content.rfind(b"\n") + 1
    while (
        ending == ".csv" and content.count(b'"', 0, end) % 2
    ):  # a line break within quotation marks
        end = content.rfind(b"\n", 0, end - 1) + 1
    text = content[:end].decode(errors="replace")
    try:
        if ending == ".csv":
            names, *found = [*csv.reader(io.StringIO(text, newline=""))] or [columns]
            rows: list[Row] = [
                dict(zip(names, (value or None for value in values), strict=True))
                for values in found
            ]
        else:
            names, rows = columns, [json.loads(line) for line in text.split("\n")[:-1]]
        ours = all(list(one) == list(columns) for one in (names, *rows))
    except (ValueError, TypeError, csv.Error):
        ours = False
    if not ours:
        raise UserError(
            f"--resume: '{printable(file.name)}' has other rows or columns; --overwrite begins anew"
        )
    file.truncate(end)
    file.seek(end)
    return rows


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO(newline="")
    texts = [
        json.dumps(value, ensure_ascii=False) if isinstance(value, bool | list) else value
        for value in values
    ]
    csv.writer(line).writerow(texts)
    return (
        line.getvalue().removesuffix("\r\n") + "\n"
    )  # by which Python's writer quotes a lone carriage return, too


def _plain(value: Any) -> Any:
    """Shortens a float32 to the digits that tell it from its neighbours; one that is not finite becomes None."""
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else None
    return value
