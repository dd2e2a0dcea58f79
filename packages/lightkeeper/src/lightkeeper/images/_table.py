"""Finds the image files that a table names, with their labels and, if it has them, splits."""

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from ..exact._errors import UserError, listed, printable
from ._class_names import names_of_numbers
from ._layout import (
    SPLIT_OF,
    ImageFile,
    Listing,
    search_path,
    split_names,
    split_tables,
    unlabelled,
)
from ._preprocessing import Bands
from ._scan import images_below, is_image, prefix_of, to_nfc
from ._sheet import LABELS, Sheet, key_of, likely_labels, read_sheet, require_one_form
from ._splits import SPLITS

_PATHS = (
    *("path", "filepath", "filepaths", "file", "filename"),
    *("image", "imagepath", "imagename", "imageid", "id"),
)
_OF_VALIDATION = ("valid", "isvalid")
_SPLIT_COLUMNS = ("split", *_OF_VALIDATION)
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_SPLIT_OF_FLAG = SPLIT_OF | {cell: "val" if flag else "train" for cell, flag in _FLAGS.items()}


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
        class_names: The names of classes that the user has given.
    """

    def __init__(
        self,
        file: Path,
        root: Path | None = None,
        columns: Mapping[str, str | None] | None = None,
        group: str | None = None,
        label_from: str | None = None,
        bands: Bands | None = None,
        class_names: Sequence[str] = (),
    ) -> None:
        self.columns = columns or {}
        self.group = group
        self.label_from = label_from
        self.bands = bands
        self.class_names = [*class_names]
        self.files = split_tables(file) or {"": file}
        self.root = root or Path(os.path.commonpath(file.parent for file in self.files.values()))
        if not self.root.is_dir():
            raise UserError(f"there is no folder '{printable(self.root)}'", "root")
        self._beside = {
            table: os.path.relpath(table.parent, self.root) for table in self.files.values()
        }

    def list_files(self) -> Listing:
        """Finds the files of each class and split."""
        sheets = {split: read_sheet(file) for split, file in self.files.items()}
        first = next(iter(sheets.values()))
        path_column = self._path_column(first)
        split_column = self._split_column(first, path_column)
        splits = _SPLIT_OF_FLAG if key_of(split_column) in _OF_VALIDATION else SPLIT_OF
        used = (path_column, split_column, self.group)
        others = [name for name in first.columns if name not in used]
        labels = [] if self.label_from else self._label_columns(first, others)
        unused = [name for name in others if name not in labels]
        folders = {self.root, *(file.parent for file in self.files.values())}
        of_names, names = names_of_numbers([*sheets.values()], labels, folders, self.class_names)
        has_cells_of_labels = len(labels) == 1 and not names
        for column in (self.group or "", *(labels if has_cells_of_labels else ())):
            require_one_form([*sheets.values()], column)
        notes = [
            f"classes from the {_columns(labels)}"
            if labels
            else f"classes from paths, by {self.label_from!r}",
            of_names,
            f"splits from the column {split_column}" if split_column else "",
            f"not used: the {_columns(unused)}" if unused else "",
        ]
        files = []
        lines: dict[str, int] = {}
        for split, sheet in sheets.items():
            is_unlabelled = not any(key_of(name) in LABELS for name in sheet.columns)
            if split == "test" and is_unlabelled and not {*sheet.columns} >= {*labels}:
                notes.append(unlabelled(sheet.file.name, len(sheet.rows)))
                continue
            if split:
                notes.append(f"{split} from {os.path.relpath(sheet.file, self.root)}")
            for line in sheet.rows:
                file = self._file_of(sheet, line, path_column, labels, split_column, splits, names)
                if file.path in lines:
                    raise sheet.error(f"'{file.path}' is in line {lines[file.path]}, too", line)
                lines[file.path] = line
                files.append(file._replace(split=file.split or split))
        files.sort(key=lambda file: (to_nfc(file.path), file.path))
        if not any(file.split for file in files):
            files = self._split_by_folders(files, notes)
        if self.group is None and not {file.split for file in files} >= {*SPLITS}:
            self._require_own_names(files)
        return files, [*notes, self._describe_others(lines)]

    def _path_column(self, sheet: Sheet) -> str:
        """Returns the column of a usual name; of several, the one whose first file is there."""
        usual = [name for name in sheet.columns if key_of(name) in _PATHS]
        if len(usual) > 1:
            row = next(iter(sheet.rows.values()))
            usual = [name for name in usual if self._path_of(row[name], sheet)] or usual
        return sheet.choose("path_column", self.columns.get("path_column"), usual)

    def _split_column(self, sheet: Sheet, path: str) -> str:
        """Returns the column of splits, by its usual name or its cells, or an empty name."""
        if (name := self.columns.get("split_column")) is not None:
            return sheet.choose("split_column", name, [])
        usual = []
        for name in sheet.columns:
            cells = {row[name].lower() for row in sheet.rows.values()}
            splits = {SPLIT_OF.get(cell) for cell in cells}
            is_usual = key_of(name) in _SPLIT_COLUMNS and cells != {""}
            if name != path and (is_usual or (None not in splits and len(splits) > 1)):
                usual.append(name)
        return sheet.choose("split_column", None, usual) if usual else ""

    def _label_columns(self, sheet: Sheet, others: Sequence[str]) -> Sequence[str]:
        """Returns the column of labels, or the columns of zeros and ones, one for each class."""
        name = self.columns.get("label_column")
        if not others:
            raise sheet.error("it has no column of classes", option="file")
        likely = likely_labels(others)
        cells = {row[other].lower() for other in likely for row in sheet.rows.values()}
        if name is None and len(likely) == len(others) > 1 and cells <= _FLAGS.keys():
            return others
        return [sheet.choose("label_column", name, likely)]

    def _file_of(
        self,
        sheet: Sheet,
        line: int,
        path_column: str,
        label_columns: Sequence[str],
        split_column: str,
        splits: Mapping[str, str],
        names: Mapping[str, str],
    ) -> ImageFile:
        """Returns the file of a row; its split is empty if no column says it."""
        row = sheet.rows[line]
        cell = row.get(split_column, "")
        split = splits.get(cell.lower(), "")
        if split_column and not split:
            hint = "; of 0 and 1, call it is_valid: 1 is for val" if cell.lower() in _FLAGS else ""
            raise sheet.error(f"the split must be train, val or test, got '{cell}'{hint}", line)
        path = self._find(path_column, sheet, line)
        is_inside = not os.path.isabs(path)
        searched = path if is_inside else os.path.relpath(path, self.root)
        label = (
            search_path(self.label_from, searched, "label_from")
            if self.label_from is not None
            else _label_of(sheet, line, label_columns)
        )
        if not label:
            raise sheet.error(
                "it has no label that is a text or a number; where images have several classes, see"
                " the example of a multi-label classifier",
                line,
            )
        group = row.get(self.group or "", "")
        if self.group in row and not group:
            raise sheet.error(f"it has no {printable(self.group)}", line)
        if self.group is not None and not group:
            group = search_path(self.group, searched, "group")
            group = group if is_inside else self._name_outside(group)
        return ImageFile(
            os.path.join(prefix_of(self.root), path),
            to_nfc(names.get(label, label)),
            split,
            to_nfc(group or (path if is_inside else self._name_outside(path))),
        )

    def _name_outside(self, name: str) -> str:
        """Returns the name of a file outside the root, or of its group: its hash decides the split.

        The path below the root depends on where the table lies, and the whole path on the machine:
        the last folder and the name on neither.
        """
        if name.startswith(os.pardir):
            name = os.path.abspath(self.root / name)
        return os.path.join(*Path(name).parts[-2:])

    def _find(self, column: str, sheet: Sheet, line: int) -> str:
        """Finds the file of a row by its path or id; returns its path below the root, or absolute.

        An id is the name of a file at any depth, with or without its suffix. Both may be written as
        another system would.
        """
        name = sheet.rows[line].get(column, "")
        candidates = self._candidates(name, sheet)
        if len(candidates) > 1:
            raise sheet.error(f"'{printable(name)}' may be {listed(candidates, 4, 'or')}", line)
        if candidates:
            return candidates[0]
        if not name:
            raise sheet.error(f"it has no {column}", line)
        others = [row for row in sheet.rows.values() if not self._candidates(row[column], sheet)]
        more = f", nor are those of {len(others) - 1:,} other lines" if len(others) > 1 else ""
        raise sheet.error(
            f"there is no file '{printable(name)}' in '{printable(self.root)}'{more}", line, "root"
        )

    def _candidates(self, name: str, sheet: Sheet) -> Sequence[str]:
        """Returns the files that a path or id may be."""
        if path := self._path_of(name, sheet):
            return [path]
        written = to_nfc(name.replace("\\", "/"))
        for folder in ("", self._beside[sheet.file]):
            if found := self._index.get(os.path.normpath(os.path.join(folder, written))):
                return found
        return []

    def _path_of(self, name: str, sheet: Sheet) -> str:
        """Returns the path of a file as it is written, below the root or beside the table.

        It is absolute outside the root, and empty if there is no such file.
        """
        folders = ("", self._beside[sheet.file])
        paths = [os.path.normpath(os.path.join(folder, name)) for folder in folders]
        path = next((path for path in paths if os.path.isfile(os.path.join(self.root, path))), "")
        if path.startswith((os.sep, os.pardir)):
            # as the system does, ".." leads out of the folder that a link leads to
            root = (
                os.path.abspath(self.root) if os.path.isabs(path) else os.path.realpath(self.root)
            )
            below = os.path.relpath(os.path.join(root, path), root)
            is_inside = below.partition(os.sep)[0] != os.pardir
            path = below if is_inside else os.path.normpath(os.path.join(root, path))
        return path

    @cached_property
    def _index(self) -> Mapping[str, Sequence[str]]:
        """The images below the root, by their paths, names and stems, each spelt alike."""
        index = defaultdict[str, list[str]](list)
        for path in images_below(self.root, Counter(), self.bands):
            name = os.path.basename(path)
            for key in {path, name, os.path.splitext(name)[0]}:
                index[to_nfc(key)].append(path)
        return index

    def _split_by_folders(self, files: list[ImageFile], notes: list[str]) -> list[ImageFile]:
        """Takes splits from the first folders of the paths, if all of these mean one."""
        prefix = prefix_of(self.root)
        tops = [file.path.removeprefix(prefix).partition(os.sep)[0] for file in files]
        split_of = {top: split for split, top in split_names({*tops}).items()}
        if len(split_of) < 2 or split_of.keys() != {*tops}:
            return [file._replace(split="train") for file in files]
        notes.append(f"splits from the folders {listed(sorted(split_of))}")
        return [file._replace(split=split_of[top]) for file, top in zip(files, tops, strict=True)]

    def _require_own_names(self, files: Sequence[ImageFile]) -> None:
        """Refuses images outside the root that have a name in common, by which splits are cut."""
        paths: dict[str, str] = {}
        for file in files:
            other = paths.setdefault(file.group, file.path)
            if to_nfc(other) != to_nfc(file.path):
                raise UserError(
                    f"'{printable(other)}' and '{printable(file.path)}' lie outside"
                    f" '{printable(self.root)}', where '{printable(file.group)}' alone decides the"
                    " split; give the folder that all images are in",
                    "root",
                )

    def _describe_others(self, paths: Collection[str]) -> str:
        """Describes images that no row names: beside the others, or wherever ids were looked up."""
        prefix = prefix_of(self.root)
        looked_up: Mapping[str, Sequence[str]] = vars(self).get("_index", {})
        images = {prefix + path for same in looked_up.values() for path in same}
        for folder in {os.path.dirname(path) for path in paths}:
            names = filter(is_image, os.listdir(folder or os.curdir))
            images.update(os.path.join(folder, name) for name in names)
        others = images.difference(paths)
        if not others:
            return ""
        example = min(others).removeprefix(prefix)
        return f"images without a class are left out: {len(others):,}, such as {example}"


def _label_of(sheet: Sheet, line: int, columns: Sequence[str]) -> str:
    """Returns the label in a column, or the column of the only one."""
    cells = {name: sheet.rows[line].get(name, "") for name in columns}
    if len(cells) == 1:
        return cells[columns[0]]
    ones = [name for name, cell in cells.items() if _FLAGS.get(cell.lower())]
    if len(ones) != 1:
        raise sheet.error(
            f"it has {len(ones)} ones in the {_columns(columns)}; where images have several classes"
            " or none, see the example of a multi-label classifier",
            line,
        )
    return ones[0]


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {listed(names, 5)}"
