"""Files of rows for other programs: CSV, JSON Lines or Parquet, each whole under its name or not there at all."""

import csv
import errno
import fcntl
import glob
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..errors import UserError, printable

Row = Mapping[str, Any]
"""A value for each column: a text, a float in the precision of float32, a truth value, or None."""

Columns = Mapping[str, type]
"""The columns in their order: ``str``, ``float`` or ``bool``."""

RESUMABLE = (".csv", ".jsonl")
ENDINGS = (*RESUMABLE, ".parquet")
_ROW_GROUP = 2**15
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class TextRows:
    """CSV, with a line of names, or JSON Lines; after each call, whole rows are where another process finds them.

    Args:
        file: Where the rows go; in a file that has rows already, behind these.
        columns: The columns.
        ending: ``.csv`` or ``.jsonl``.
        shown: Whether a terminal shows the file, which no name of a file or a class shall control.
    """

    def __init__(self, file: BinaryIO, columns: Columns, ending: str = ".csv", shown: bool = False) -> None:
        self._file, self._columns, self._ending, self._shown = file, columns, ending, shown
        if ending == ".csv" and not (file.seekable() and file.tell()):
            self._write(_csv_line(columns))

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""
        line = _json_line if self._ending == ".jsonl" else _csv_line
        self._write("".join(line([row[name] for name in self._columns], self._columns) for row in rows))

    def _write(self, text: str) -> None:
        self._file.write((printable(text, keep="\n") if self._shown else text).encode(errors="backslashreplace"))
        self._file.flush()

    def close(self) -> None:
        """Has written everything."""


class ParquetRows:
    """Parquet with row groups of 32,768 rows, which are all of it that is in memory.

    Args:
        file: Where the rows go.
        columns: The columns.

    Raises:
        UserError: pyarrow is not installed.
    """

    def __init__(self, file: BinaryIO, columns: Columns) -> None:
        try:
            self._arrow: Any = import_module("pyarrow")
            parquet: Any = import_module("pyarrow.parquet")
        except ModuleNotFoundError:
            raise UserError("Parquet needs a package: pip install pyarrow; or name a .csv or .jsonl file") from None
        kinds = {str: self._arrow.string(), float: self._arrow.float32(), bool: self._arrow.bool_()}
        self._schema = self._arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        self._writer, self._waiting = parquet.ParquetWriter(file, self._schema), list[Row]()

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""
        self._waiting += rows
        if len(self._waiting) >= _ROW_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._waiting, schema=self._schema))
        self._waiting = []

    def close(self) -> None:
        """Writes what is left."""
        if self._waiting:
            self._write_group()
        self._writer.close()


RowWriter = TextRows | ParquetRows
"""Writes rows as they come."""


def ending_of(option: str, path: str) -> str:
    """The ending that says what a file of rows is.

    Raises:
        UserError: It is another one.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in ENDINGS:
        raise UserError(f"{option} must end with {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, got '{path}'")
    return ending


def partial_path(path: str, key: str = "") -> Path:
    """Where rows are written before the file is whole.

    Args:
        path: The file.
        key: Tells apart what must not be continued with each other.
    """
    return Path(f"{path}.{key}.partial" if key else f"{path}.partial")


def partial_paths(path: str) -> list[Path]:
    """What commands have left that did not finish the file."""
    return sorted(map(Path, glob.glob(f"{glob.escape(path)}.*partial")))


@contextmanager
def writing_rows(
    option: str, path: str, columns: Columns, partial: Path | None = None, begin: int = 0, advice: str = ""
) -> Iterator[RowWriter]:
    """Writes a file of rows beside its name, and renames it once it is whole.

    Where that ends by an error, CSV and JSON Lines stay beside the name to be continued, if ``partial`` says where.

    Args:
        option: The option that names the file.
        path: The file, which is replaced.
        columns: The columns.
        partial: Where rows are written at first.
        begin: How many bytes of that are there already; what follows them is cut off.
        advice: What to do where the disk is full, behind the error.

    Raises:
        UserError: The file cannot be written, or another process writes it.
    """
    ending, continued = ending_of(option, path), partial is not None
    partial = partial or partial_path(path)
    locked = _locked(option, path, partial)
    try:
        with locked as file:  # to the end, so that nobody else begins what is about to get its name
            file.truncate(begin)
            file.seek(begin)
            rows = ParquetRows(file, columns) if ending == ".parquet" else TextRows(file, columns, ending)
            try:
                yield rows
            finally:  # a writer of Parquet would close itself later, when the file is closed already
                rows.close()
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except BaseException as error:
        if ending not in RESUMABLE or not continued:
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError) or error.errno not in _NO_ROOM:
            raise  # of something else, such as the processes that load images
        raise UserError(f"{option}: '{printable(path)}' cannot be written ({error.strerror}){advice}") from error


def remove_left(partial: Path) -> None:
    """Removes what a command has left, unless that still writes it."""
    with suppress(UserError), _locked("--output", str(partial), partial):
        partial.unlink(missing_ok=True)


def _locked(option: str, path: str, partial: Path) -> BinaryIO:
    try:
        file = open(os.open(partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")  # noqa: SIM115  # the caller closes it
    except OSError as error:
        raise UserError(f"{option}: '{printable(path)}' cannot be written ({error.strerror})") from error
    try:
        # a POSIX lock, which processes that load images do not inherit: they outlive a killed command for a while
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file.fileno()), os.stat(partial)):
            raise BlockingIOError
    except (BlockingIOError, PermissionError, FileNotFoundError):  # or its name is gone: just now, that one was done
        file.close()
        raise UserError(f"{option}: another process writes '{printable(path)}'") from None
    return file


class FinishedRow(NamedTuple):
    """A row that is in a file.

    Attributes:
        values: The texts of CSV, the values of JSON Lines; None where CSV is empty.
        end: How many bytes the file has up to its end.
    """

    values: dict[str, Any]
    end: int


def finished_rows(path: str | Path, ending: str, columns: Columns) -> Iterator[FinishedRow]:
    """Reads a file of rows up to where it is cut off, one row at a time.

    Args:
        path: The file.
        ending: ``.csv`` or ``.jsonl``.
        columns: The columns; a file with others has no row of these.
    """
    with open(path, "rb") as file:
        yield from (_finished_csv if ending == ".csv" else _finished_json)(file, list(columns))


def _finished_json(file: BinaryIO, names: list[str]) -> Iterator[FinishedRow]:
    end = 0
    for line in file:
        end += len(line)
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not (line.endswith(b"\n") and isinstance(values, dict) and list(values) == names):
            return
        yield FinishedRow(values, end)


def _finished_csv(file: BinaryIO, names: list[str]) -> Iterator[FinishedRow]:
    end = 0

    def whole_lines() -> Iterator[str]:
        nonlocal end
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            yield line.decode(errors="replace")

    rows = csv.reader(whole_lines(), strict=True)
    try:
        if next(rows, None) != names:
            return
        for row in rows:
            if len(row) != len(names):
                return
            yield FinishedRow({name: text or None for name, text in zip(names, row, strict=True)}, end)
    except csv.Error:  # cut off within quotation marks
        return


def _csv_line(values: Sequence[Any] | Columns, _names: Columns | None = None) -> str:
    return ",".join(_csv_field(value) for value in values) + "\n"


def _csv_field(value: Any) -> str:
    if isinstance(value, str):  # Python's own writer leaves a carriage return bare, which ends a line when it is read
        return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n') else value
    return "" if (value := _plain(value)) is None else json.dumps(value)


def _json_line(values: Sequence[Any], names: Columns) -> str:
    row = {name: _plain(value) for name, value in zip(names, values, strict=True)}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """A float32 with as many digits as tell it from its neighbours, and as None where it is not finite."""
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else None
    return value
