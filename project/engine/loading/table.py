"""Reads a CSV of image files with their labels and, optionally, splits and groups."""

import csv
import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TextIO
from unicodedata import normalize

from ..errors import UserError, listed, printable
from .layout import SPLIT_OF, FoundFiles
from .paths import Paths
from .scan import spelt

_SEPARATORS = ",;\t|"


class Row(NamedTuple):
    """A line of a table; ``split`` and ``group`` are empty if there is no such column."""

    line: int
    path: str
    label: str
    split: str
    group: str


class Table:
    """A CSV whose first line names the columns.

    Args:
        file: The CSV, in UTF-8.
        columns: The name of the column for each of the options ``path_column``, ``label_column``,
            ``split_column`` and, if there are groups, ``group``.
        delimiter: The character between columns; by default the one that the first line has.
    """

    def __init__(self, file: Path, columns: Mapping[str, str], delimiter: str | None) -> None:
        self.file, self.columns = file, columns
        self.delimiter = {"\\t": "\t"}.get(delimiter or "", delimiter)
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise UserError(f"--data.delimiter must be one character, got '{delimiter}'")

    def list_files(self, root: Path) -> FoundFiles:
        """Finds the files, whose paths are relative to ``root``, of each class and split."""
        real = cache(os.path.realpath)
        lines: dict[str, int] = {}
        rows: list[Row] = []
        for row in self.rows():
            path, file = _find(root, row.path, real)
            if not file:
                raise self.error(
                    f"there is no file '{printable(row.path)}' in --data.root, which is"
                    f" '{printable(root)}'",
                    row.line,
                )
            if (first := lines.setdefault(file, row.line)) != row.line:
                raise self.error(f"'{printable(row.path)}' is in line {first}, too", row.line)
            rows.append(row._replace(path=path))
        rows.sort(key=lambda row: (spelt(row.path), row.path))
        without = [row.line for row in rows if not row.split]
        if 0 < len(without) < len(rows):
            raise self.error("the split must be train, val or test, got ''", min(without))
        files = Paths.of((row.path for row in rows), root)
        places = defaultdict[str, dict[str, list[int]]](lambda: defaultdict(list))
        for place, row in enumerate(rows):
            places[row.split or "train"][row.label].append(place)
        splits = {
            split: {label: files.take(at) for label, at in classes.items()}
            for split, classes in places.items()
        }
        layout = [f"classes from the column {self.columns['label_column']}"]
        if rows and not without:
            layout.append(f"splits from the column {self.columns['split_column']}")
        groups = {row.path: row.group for row in rows} if "group" in self.columns else {}
        return FoundFiles(splits, root, layout, groups)

    def rows(self) -> Iterator[Row]:
        """Yields the lines, with names in Unicode's composed form."""
        if not self.file.is_file():
            raise UserError(f"--data.file: there is no file '{printable(self.file)}'")
        try:
            with self.file.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, delimiter=self._separator(file), strict=True)
                self._require_columns(reader.fieldnames or [])
                for values in reader:
                    yield self._row(values, reader.line_num)
        except UnicodeDecodeError as error:
            raise self.error(f"it is not UTF-8 (byte {error.start}); save it as that") from error
        except csv.Error as error:
            raise self.error(str(error)) from error

    def error(self, text: str, line: int | None = None) -> UserError:
        """Returns an error about the file, or a line of it."""
        where = f", line {line}" if line is not None else ""
        return UserError(f"'{printable(self.file)}'{where}: {text}")

    def _separator(self, file: TextIO) -> str:
        """Returns the separator by which the first line has the most columns that are asked for."""
        if self.delimiter is not None:
            return self.delimiter

        def columns(separator: str) -> tuple[int, int]:
            file.seek(0)
            names = next(csv.reader(file, delimiter=separator), [])
            return len({*names} & {*self.columns.values()}), len(names)

        separator = max(_SEPARATORS, key=columns)
        file.seek(0)
        return separator

    def _require_columns(self, names: Sequence[str]) -> None:
        for option, column in self.columns.items():
            missing = column not in names
            if column == "split" and "split" not in map(str.lower, names):
                missing = False  # there need not be one
            if missing:
                raise self.error(
                    f"there is no column '{printable(column)}' among"
                    f" {printable(', '.join(names))[:200] or 'none'}; --data.{option} names it, and"
                    " --data.delimiter is between columns",
                    1,
                )

    def _row(self, values: dict[str | None, str | None], line: int) -> Row:
        path, label, split, *group = (values.get(name) or "" for name in self.columns.values())
        row = Row(line, path, spelt(label.strip()), split.strip().lower(), spelt("".join(group)))
        if None in values or not path or not row.label or "" in group:
            what = listed(
                ["a path", "a label", *(f"a {name}" for name in [*self.columns.values()][3:])]
            )
            raise self.error(f"it must have {what}, and no more columns than the first", line)
        if row.split not in SPLIT_OF and row.split:
            raise self.error(
                f"the split must be train, val or test, got '{printable(split)}'", line
            )
        return row._replace(split=SPLIT_OF.get(row.split, ""))


def _find(root: Path, path: str, real: Callable[[str], str]) -> tuple[str, str]:
    """Finds a file by its path as it is written, or else as another system would write it.

    Returns the path that leads to it and the one without links, both empty if there is none.
    """
    for written in (path, path.replace("\\", "/")):
        for spelling in (written, normalize("NFC", written), normalize("NFD", written)):
            if file := _real_path(os.path.join(root, spelling), real):
                return spelling, file
    return "", ""


def _real_path(path: str, real: Callable[[str], str]) -> str:
    """Returns a file's path without links; ``real`` remembers folders, as most files share them."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):  # the last if it has a NUL
        if stat.S_ISREG(os.lstat(path).st_mode):
            folder, name = os.path.split(path)
            return os.path.join(real(folder), name)
    return os.path.realpath(path) if os.path.isfile(path) else ""
