"""Reads the rows of one file: CSV and its relatives, JSON lines or Parquet."""

import codecs
import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from ..exact._errors import UserError, first_sentence, listed, printable
from ._decode import IMAGE_SUFFIXES

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""The ends of the names of files that are surely tables."""

LABELS = ("label", "class", "target", "category")
_SEPARATORS = ",;\t| "
_SAMPLE = 2**14
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The marks that texts in UTF-16 begin with."""


def key_of(name: str) -> str:
    """Spells a column's name alike: ``Image ID``, ``image_id`` and ``imageId`` are one."""
    return re.sub("[ _-]", "", name).lower()


def likely_labels(names: Sequence[str]) -> Sequence[str]:
    """Returns the columns of usual names for labels, or else all."""
    return [name for name in names if key_of(name) in LABELS] or names


class Sheet(NamedTuple):
    """The rows of a file by their lines, each with a text for each column."""

    file: Path
    columns: Sequence[str]
    rows: Mapping[int, Mapping[str, str]]

    def error(self, text: str, line: int | None = None, option: str | None = None) -> UserError:
        """Returns an error about the file, or a line of it."""
        where = f", line {line}" if line is not None else ""
        return UserError(f"'{printable(self.file)}'{where}: {text}", option)

    def choose(self, option: str, name: str | None, usual: Sequence[str]) -> str:
        """Returns the column ``name``, or else the only ``usual`` one; others are an error."""
        candidates = [*usual] if name is None else [name]
        if len(candidates) == 1 and candidates[0] in self.columns:
            return candidates[0]
        got = f", got '{printable(name)}'" if name is not None else ""
        raise UserError(
            f"must name one of the columns {listed(self.columns, 20, 'or')} of"
            f" '{printable(self.file)}'{got}",
            option,
        )


def read_sheet(file: Path) -> Sheet:
    """Reads a file by the end of its name.

    Raises a UserError if it is not there, or no table, or if a row has fewer or more columns than
    the first.
    """
    if not file.is_file():
        raise UserError(f"there is no file '{printable(file)}'", "file")
    suffix = file.suffix.lower()
    try:
        if suffix == ".parquet":
            records = _parquet_records(file)
        else:
            text = decoded(file.read_bytes())
            if "\0" in text:
                raise ValueError(
                    "it is no plain text in UTF-8: save a spreadsheet as CSV, unpack an archive, or"
                    " name a folder of images"
                )
            records = _json_records(text) if "json" in suffix else _csv_records(text)
        rows = {line: _texts(record) for line, record in records}
    except (ValueError, RecursionError, csv.Error) as error:
        why = printable(first_sentence(error))[:200]
        raise UserError(f"'{printable(file)}' cannot be read as a table: {why}") from error
    if not rows:
        raise UserError(f"'{printable(file)}' names no image")
    empty = {name: "" for row in rows.values() for name in row}
    return Sheet(file, [*empty], {line: empty | row for line, row in rows.items()})


def _texts(record: Mapping[str, object]) -> dict[str, str]:
    """Returns a record's values as text without spaces around.

    None, NaN, lists and objects are empty: they are no path, label, split or group.
    """
    return {
        name: "" if isinstance(value, list | dict | None) or value != value else str(value).strip()
        for name, value in record.items()
    }


def _parquet_records(file: Path) -> Iterator[tuple[int, dict[str, object]]]:
    try:
        from pyarrow import parquet, types
    except ModuleNotFoundError as error:
        raise UserError(
            f"'{printable(file)}' needs the package pyarrow: pip install pyarrow"
        ) from error
    try:
        schema = parquet.read_schema(file)
        has_images = any(types.is_struct(f.type) or types.is_binary(f.type) for f in schema)
        rows = [] if has_images else parquet.read_table(file).to_pylist()
    except OSError as error:  # pyarrow's of damaged parts, without a number
        raise error if error.errno else ValueError(str(error)) from error
    if has_images:
        raise UserError(
            f"'{printable(file)}' holds the images themselves; --data hf:FOLDER reads it, with the"
            " folder that it is in"
        )
    return enumerate(rows, start=1)


def _json_records(text: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Reads an object in each line."""
    for line, record in enumerate(StringIO(text), start=1):
        if not record.strip():
            continue
        try:
            content = json.loads(record)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"line {line}, column {error.colno}: {error.msg};"
                " each line must be an image's object"
            ) from error
        if not isinstance(content, dict):
            raise ValueError("each line must be the object of an image")
        yield line, content


def decoded(content: bytes) -> str:
    """Decodes UTF-8, UTF-16 with its mark, or else what Western editions of Windows write."""
    marked = "utf-16" if content.startswith(UTF_16) else "utf-8-sig"
    try:
        return content.decode(marked)
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="backslashreplace")


def _csv_records(text: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Splits lines at the separator by which most have as many columns as the first.

    ``csv.Sniffer`` would take the comma of some labels, or the space of ``image 1.jpg``, for one.
    A first line with an image's name is no header; columns are then called by their numbers.
    """

    def fit(separator: str) -> tuple[int, bool, int]:
        sizes = [len(row) for _, row in _split(text[:_SAMPLE], separator, strict=False)] or [0]
        return sum(size == sizes[0] > 1 for size in sizes), separator != " ", sizes[0]

    text = re.sub(r"\Asep=.(?=\r?\n)", "", text)  # of Excel
    lines = _split(text, max(_SEPARATORS, key=fit))
    names = [name.strip() for name in lines[0][1]] if lines else []
    images = [name.lower().endswith(tuple(IMAGE_SUFFIXES)) for name in names]
    if any(images):
        names = [str(number) for number in range(1, len(names) + 1)]
        names[images.index(True)] = "path"
    else:
        del lines[:1]
    if len({*names} - {""}) < len([*filter(None, names)]):
        raise ValueError(f"two of its columns have one name: {listed(names)}")
    for line, cells in lines:
        if len(cells) != len(names):
            raise ValueError(f"line {line} has {len(cells)} columns, not {len(names)}")
        yield line, {name: cell for name, cell in zip(names, cells, strict=True) if name}


def _split(text: str, separator: str, strict: bool = True) -> list[tuple[int, list[str]]]:
    """Returns the number and the cells of each line that has any; quotes must be closed."""
    lines = StringIO(text, newline="")
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True, strict=strict)
    return [(reader.line_num, row) for row in reader if any(map(str.strip, row))]


def require_one_form(sheets: Sequence[Sheet], column: str) -> None:
    """Refuses a number that is written as 3 and as 3.0: two classes or groups would be one."""
    cells = {row.get(column, "") for sheet in sheets for row in sheet.rows.values()}
    if twice := sorted(cells & {cell.removesuffix(".0") for cell in cells if cell.endswith(".0")}):
        raise UserError(
            f"the column {printable(column)} has '{twice[0]}' and '{twice[0]}.0': write each number"
            " in one way",
            "file",
        )
