"""Image files that a CSV names, with a label and, where there is one, a split for each."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from project.data.image_files import ImageFilesDataModule
from project.data.splits import SPLITS, hashed_split
from project.engine.errors import UserError, printable
from project.engine.loading.listing import ClassFiles, spelt


class Row(NamedTuple):
    """A line of the file.

    Attributes:
        line: Its number.
        path: The image file.
        label: The name of its class.
        split: Where it belongs; empty where the file does not say.
        name: The path as it is written, by which splits are cut.
    """

    line: int
    path: Path
    label: str
    split: str
    name: str


class CSVDataModule(ImageFilesDataModule):
    """Image files that a CSV names: UTF-8, with commas, semicolons or tabs, and a first line that names the columns.

    Args:
        file: The CSV.
        root: What paths in it are relative to; by default the folder that it lies in. Absolute paths are taken as they
            are.
        path_column: The column of the image files.
        label_column: The column of the names of the classes.
        split_column: The column of ``train``, ``val`` or ``test``; there need not be one of the default name. A split
            that no line names is cut from the training images.
        kwargs: See :class:`project.data.image_files.ImageFilesDataModule`.
    """

    def __init__(
        self,
        file: str,
        root: str | None = None,
        path_column: str = "path",
        label_column: str = "label",
        split_column: str = "split",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.file = Path(file).expanduser()
        self.root = Path(root).expanduser() if root is not None else self.file.parent
        self.columns = path_column, label_column, split_column

    @property
    def images_root(self) -> Path:
        """What paths in the file are relative to."""
        return self.root

    @property
    def source(self) -> Path:
        """The file itself."""
        return self.file

    def find(self) -> dict[str, ClassFiles]:
        """Reads the file, and cuts what splits it does not name from the training images."""
        if not self.file.is_file():
            raise UserError(f"--data.file: there is no file '{printable(self.file)}'")
        rows = list(self._rows())
        self._require_sound(rows)
        classes = sorted({row.label for row in rows})
        if len(classes) < 2:
            raise UserError(f"{self._place()}: there must be two classes at least, got {', '.join(classes) or 'none'}")
        named = [split for split in SPLITS if any(row.split == split for row in rows)]
        of_split: dict[str, dict[str, list[Row]]] = {split: {name: [] for name in classes} for split in SPLITS}
        for row in sorted(rows, key=lambda row: row.name):
            of_split[row.split or "train"][row.label].append(row)
        for name, members in of_split["train"].items():
            if not members:
                raise UserError(f"{self._place()}: the class '{printable(name)}' has no training image")
        fractions = {split: share for split, share in self.fractions.items() if split not in named}
        if fractions:
            for name, members in of_split["train"].items():
                parts = hashed_split(
                    [spelt(row.name) for row in members], fractions, seed=self.split_seed, class_name=name
                )
                for split, positions in parts.items():
                    of_split[split][name] = [members[position] for position in positions]
        return {
            split: {name: [row.path for row in members] for name, members in of_class.items()}
            for split, of_class in of_split.items()
        }

    def _rows(self) -> Iterator[Row]:
        try:
            with self.file.open(encoding="utf-8-sig", newline="") as file:
                yield from self._parsed(file)
        except UnicodeDecodeError as error:
            raise UserError(f"{self._place()}: it is not UTF-8 (byte {error.start}); save it as that") from error
        except csv.Error as error:
            raise UserError(f"{self._place()}: {error}") from error

    def _parsed(self, file: Any) -> Iterator[Row]:
        header = file.readline()
        delimiter = max(",;\t", key=header.count)
        names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
        path_column, label_column, split_column = self.columns
        required = {"path": path_column, "label": label_column}
        if split_column != "split" or "split" in map(str.lower, names):  # else there need not be one
            required["split"] = split_column
        for option, column in required.items():
            if column not in names:
                raise UserError(
                    f"{self._place(1)}: there is no column '{column}' among {printable(', '.join(names)) or 'none'}; name"
                    f" the columns in the first line, or say which it is with --data.{option}_column"
                )
        reader = csv.DictReader(file, names, delimiter=delimiter, strict=True)
        for values in reader:
            line = reader.line_num + 1
            path, label = (values[column] or "" for column in (path_column, label_column))
            split = (values.get(split_column) or "").strip()
            if None in values or not path or not label.strip():
                raise UserError(f"{self._place(line)}: it must have a path and a label, in {len(names)} columns")
            if split not in ("", *SPLITS):
                raise UserError(f"{self._place(line)}: the split must be train, val or test, got '{printable(split)}'")
            yield Row(line, self.root / path, spelt(label.strip()), split, path)

    def _require_sound(self, rows: list[Row]) -> None:
        if not rows:
            raise UserError(f"{self._place()}: it names no images")
        first: dict[Path, Row] = {}
        for row in rows:
            if not row.path.is_file():
                raise UserError(
                    f"{self._place(row.line)}: there is no file '{printable(row.path)}'; --data.root says what paths are"
                    " relative to"
                )
            other = first.setdefault(row.path.resolve(), row)
            if other is not row:
                what = "another label" if other.label != row.label else "the same label"
                raise UserError(
                    f"{self._place(row.line)}: '{printable(row.name)}' is in line {other.line}, too, with {what}; a file"
                    " may be there once"
                )
        if any(row.split for row in rows) and not all(row.split for row in rows):
            row = next(row for row in rows if not row.split)
            raise UserError(f"{self._place(row.line)}: it has no split, but other lines have one")

    def _place(self, line: int | None = None) -> str:
        return f"'{printable(self.file)}'" + (f", line {line}" if line is not None else "")
