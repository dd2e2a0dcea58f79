"""Finds the image files that a table names, with their labels and, if it has them, splits."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from ..errors import UserError, listed, printable
from ..preprocessing import Bands
from .layout import (
    SPLIT_OF,
    FoundFiles,
    by_class,
    split_names,
    split_tables,
    unlabelled,
)
from .paths import Paths, prefix_of
from .scan import ImageScan, spelt
from .sheet import Sheet, key_of, likely_labels, names_of_numbers, read_sheet
from .splits import group_name

_PATHS = (
    *("path", "filepath", "filepaths", "file", "filename"),
    *("image", "imagepath", "imagename", "imageid", "id"),
)
_SPLITS = ("split", "valid", "isvalid")
_IS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_SPLIT_OF = SPLIT_OF | {cell: "val" if is_true else "train" for cell, is_true in _IS.items()}


class Row(NamedTuple):
    """A row of a sheet; ``split`` and ``group`` are empty if no column says them."""

    sheet: Sheet
    number: int
    path: str
    label: str
    split: str
    group: str

    def error(self, text: str) -> UserError:
        """Returns an error about the row."""
        return self.sheet.error(text, self.number)


class Table:
    """One table, or a table for each split, of image files and their labels.

    Args:
        file: The table. If its name, or its folder's, means ``train``, the tables beside it that
            mean other splits are read, too.
        root: The folder that paths are relative to and ids are looked up in, by default the
            table's.
        columns: The names of columns for the options ``path_column``, ``label_column`` and
            ``split_column``; by default those of usual names.
        group: A column of groups, or a regular expression for paths.
        label_from: A regular expression that finds labels in paths, in place of a column.
        bands: Given if images are used as they are stored.
    """

    def __init__(
        self,
        file: Path,
        root: Path | None = None,
        columns: Mapping[str, str | None] | None = None,
        group: str | None = None,
        label_from: str | None = None,
        bands: Bands | None = None,
    ) -> None:
        self.columns, self.bands = columns or {}, bands
        self.group, self.label_from = group, label_from
        self.files = split_tables(file) or {"": file}
        folders = {table.parent for table in self.files.values()}
        self.root = root or (
            file.parent if len(folders) == 1 else Path(os.path.commonpath(folders))
        )
        self._notes: list[str] = []

    def list_files(self) -> FoundFiles:
        """Finds the files of each class and split."""
        rows: dict[str, Row] = {}
        for row in self.rows():
            path = self._find(row.path, row.sheet)
            if not path:
                raise row.error(
                    f"there is no file '{printable(row.path)}' in --data.root, which is"
                    f" '{printable(self.root)}'"
                )
            if path in rows:
                line = rows[path].sheet.lines[rows[path].number]
                raise row.error(f"'{printable(row.path)}' is in line {line}, too")
            rows[path] = row
        paths = sorted(rows, key=lambda path: (spelt(path), path))
        splits = self._splits(paths, [rows[path].split for path in paths])
        files = Paths.of(paths, self.root)
        labels = [rows[path].label for path in paths]
        groups = {path: row.group for path, row in rows.items() if row.group}
        notes = [*dict.fromkeys(self._notes), self._describe_others(paths)]
        return FoundFiles(by_class(files, splits, labels), self.root, notes, groups)

    def rows(self) -> Iterator[Row]:
        """Yields the rows of all splits; looks for no file if the columns are clear."""
        sheets = {split: read_sheet(file) for split, file in self.files.items()}
        sheet = next(iter(sheets.values()))
        path = self._path_column(sheet)
        split_column = self._split_column(sheet, path)
        others = [name for name in sheet.columns if name not in (path, split_column, self.group)]
        labels = [] if self.label_from else self._label_columns(sheet, others)
        source = f"the {_columns(labels)}" if labels else f"paths, by '{self.label_from}'"
        self._notes = [f"classes from {source}"]
        if split_column:
            self._notes.append(f"splits from the column {split_column}")
        if unused := [name for name in others if name not in labels]:
            self._notes.append(f"not used: the {_columns(unused)}")
        for split, sheet in sheets.items():
            if split == "test" and not sheet.columns.keys() >= {*labels}:
                self._notes.append(unlabelled(sheet.file.name, len(sheet.lines)))
                continue
            if split:
                self._notes.append(f"{split} from {os.path.relpath(sheet.file, self.root)}")
            for option, columns in {"path_column": [path], "label_column": labels}.items():
                for name in columns:
                    sheet.choose(option, name, [])
            yield from self._rows(sheet, path, labels, split_column, split)

    def _rows(
        self, sheet: Sheet, path: str, labels: Sequence[str], split_column: str, split: str
    ) -> Iterator[Row]:
        empty = [""] * len(sheet.lines)
        of_labels = self._labels(sheet, labels) if labels else empty
        of_splits = sheet.columns.get(split_column, empty)
        of_groups = sheet.columns.get(self.group or "", empty)
        has_splits = any(cell.strip() for cell in of_splits)
        columns = zip(sheet.columns[path], of_labels, of_splits, of_groups, strict=True)
        for number, (file, label, cell, group) in enumerate(columns):
            file = file.strip()
            if self.label_from:
                label = group_name(self.label_from, file, "--data.label_from")
            if has_splits:
                split = _SPLIT_OF.get(cell.strip().lower(), "")
            row = Row(sheet, number, file, spelt(label), split, spelt(group.strip()))
            if not (file and label and (row.group or of_groups is empty)):
                what = ["a path", "a label", *([] if of_groups is empty else ["a group"])]
                raise row.error(f"it must have {listed(what)}")
            if has_splits and not split:
                raise row.error(f"the split must be train, val or test, got '{cell}'")
            yield row

    def _path_column(self, sheet: Sheet) -> str:
        """Returns the column of a usual name; of several, the one whose first file is there."""
        usual = [name for name in sheet.columns if key_of(name) in _PATHS]
        if len(usual) > 1 and sheet.lines:
            there = [name for name in usual if self._find_path(sheet.columns[name][0], sheet)]
            usual = there or usual
        return sheet.choose("path_column", self.columns.get("path_column"), usual)

    def _split_column(self, sheet: Sheet, path: str) -> str:
        """Returns the column of splits, by its usual name or its cells, or an empty name."""
        if (name := self.columns.get("split_column")) is not None:
            return sheet.choose("split_column", name, [])
        usual = []
        for name in sheet.columns.keys() - {path}:
            splits = {SPLIT_OF.get(cell.strip().lower()) for cell in sheet.columns[name]}
            if key_of(name) in _SPLITS or (None not in splits and len(splits) > 1):
                usual.append(name)
        return sheet.choose("split_column", None, usual) if usual else ""

    def _label_columns(self, sheet: Sheet, others: Sequence[str]) -> list[str]:
        """Returns the column of labels, or the columns of zeros and ones, one for each class."""
        name = self.columns.get("label_column")
        likely = likely_labels(others)
        cells = {cell.strip().lower() for other in likely for cell in sheet.columns[other]}
        if name is None and len(likely) == len(others) > 1 and cells <= _IS.keys():
            return [*others]
        return [sheet.choose("label_column", name, likely)]

    def _labels(self, sheet: Sheet, columns: Sequence[str]) -> Sequence[str]:
        """Returns the label of each row."""
        if len(columns) == 1:
            labels = [label.strip() for label in sheet.columns[columns[0]]]
            folders = {sheet.file.parent, self.root}
            source, names = names_of_numbers({*labels}, folders, sheet)
            if names:
                self._notes.append(f"their names from {source}")
            return [names.get(label, label) for label in labels]
        labels = []
        for number, cells in enumerate(zip(*map(sheet.columns.get, columns), strict=True)):
            values = zip(columns, cells, strict=True)
            ones = [name for name, cell in values if _IS.get(cell.strip().lower())]
            if len(ones) != 1:
                raise sheet.error(
                    f"it has {len(ones)} ones in the {_columns(columns)}; where images have several"
                    " classes or none, see the example of a multi-label classifier",
                    number,
                )
            labels += ones
        return labels

    def _splits(self, paths: Sequence[str], splits: Sequence[str]) -> list[str]:
        """Returns the split of each file: the table's, or else that of its folder, or train."""
        if not any(splits):
            tops = [path.partition(os.sep)[0] for path in paths]
            of_folders = split_names({*tops})
            if len({*of_folders.values()}) > 1 and of_folders.keys() >= {*tops}:
                self._notes.append(f"splits from the folders {listed(sorted(of_folders))}")
                splits = [of_folders[top] for top in tops]
        return [split or "train" for split in splits]

    def _find(self, name: str, sheet: Sheet) -> str:
        """Finds a file by its path or id; returns its path below the root, or nothing.

        An id is the name of a file at any depth, with or without its suffix.
        """
        if (path := self._find_path(name, sheet)) or not name or re.search(r"[/\\]", name):
            return path
        candidates = self._by_id.get(spelt(name), [])
        if len(candidates) > 1:
            raise sheet.error(f"'{printable(name)}' may be {listed(candidates, 4, 'or')}")
        return "".join(candidates)

    def _find_path(self, name: str, sheet: Sheet) -> str:
        """Finds a file by its path, which may be written as another system would."""
        if os.path.isfile(os.path.join(self.root, name)):
            return os.path.normpath(name)
        for folder in ("", os.path.relpath(sheet.file.parent, self.root)):
            for written in (name, name.replace("\\", "/")):
                for form in ("NFC", "NFD"):
                    path = os.path.join(folder, normalize(form, written))
                    if os.path.isfile(os.path.join(self.root, path)):
                        return os.path.normpath(path)
        return ""

    @cached_property
    def _by_id(self) -> Mapping[str, Sequence[str]]:
        """The images below the root, by their names with and without suffix."""
        ids = defaultdict[str, list[str]](list)
        start = len(prefix_of(self.root))
        for file in ImageScan(self.bands).images(self.root):
            name = spelt(os.path.basename(file))
            for key in {name, os.path.splitext(name)[0]}:
                ids[key].append(file[start:])
        return ids

    def _describe_others(self, paths: Sequence[str]) -> str:
        """Describes images that no row names: beside the others, or wherever ids were looked up."""
        images = {*chain.from_iterable(vars(self).get("_by_id", {}).values())}
        for folder in {os.path.dirname(path) for path in paths}:
            place = os.path.join(self.root, folder)
            start = len(prefix_of(place))
            files = (file[start:] for file in ImageScan(self.bands).images(place))
            beside = takewhile(lambda name: os.sep not in name, files)
            images |= {os.path.join(folder, name) for name in beside}
        others = images.difference(paths)
        if not others:
            return ""
        return f"images without a class are left out: {len(others):,}, such as {min(others)}"


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {listed(names, 5)}"
