"""Image files that a CSV names, with a label and, where there is one, a split for each."""

import csv
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from project.data.augmentation import AugmentedDataModule
from project.engine import ImageFilesDataModule
from project.engine.errors import UserError, printable
from project.engine.loading.paths import PathBlock, Paths
from project.engine.loading.scan import spelt
from project.engine.loading.splits import SPLITS


class CSVDataModule(AugmentedDataModule, ImageFilesDataModule):
    """Image files that a CSV names: UTF-8, with a first line that names the columns.

    Args:
        file: The CSV.
        root: The folder that paths in the CSV are relative to, by default its own; absolute paths are taken as they are.
        path_column: The column of the image files.
        label_column: The column of the names of the classes.
        split_column: The column of ``train``, ``val`` or ``test``; there need not be one of the default name. A split
            that no line names is cut from the training images.
        delimiter: The character between columns, such as ``;``.
        kwargs: See ``ImageFilesDataModule``.
    """

    def __init__(
        self,
        file: str,
        root: str | None = None,
        path_column: str = "path",
        label_column: str = "label",
        split_column: str = "split",
        delimiter: str = ",",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.file = Path(file).expanduser()
        self.root = Path(root).expanduser() if root is not None else self.file.parent
        self.columns = {
            "path_column": path_column,
            "label_column": label_column,
            "split_column": split_column,
        }
        self.columns |= {"group": self.group} if self.group is not None else {}
        self.delimiter = delimiter
        self._groups: dict[str, str] = {}

    @property
    def source(self) -> Path:
        """The CSV itself."""
        return self.file

    @property
    def images_root(self) -> Path:
        """The folder that paths in the file are relative to."""
        return self.root

    def find(self) -> dict[str, dict[str, Paths]]:
        """Reads the file, and cuts what splits it does not name from the training images."""
        rows = sorted(self._with_files())
        classes = sorted({label for _, label, _ in rows})
        if len(classes) < 2:
            raise self._error(
                f"there must be two classes at least, got {', '.join(classes) or 'none'}"
            )
        places: dict[str, dict[str, list[int]]] = {
            split: {name: [] for name in classes} for split in SPLITS
        }
        for place, (_, label, split) in enumerate(rows):
            places[split or "train"][label].append(place)
        for name, of_class in places["train"].items():
            if not of_class:
                raise self._error(f"the class '{printable(name)}' has no training image")
        every = PathBlock().add(self.root, (path for path, *_ in rows))
        files = {
            split: {name: every.take(at) for name, at in named.items()}
            for split, named in places.items()
        }
        given = [split for split in SPLITS if any(places[split].values())]
        return files | self.cut(files["train"], self.root, given)

    def find_class_names(self) -> list[str]:
        """Reads the labels alone."""
        return sorted({label for _, _, label, _ in self._rows()})

    def group_of(self, path: str) -> str:
        """The name of a file's group, from its column."""
        return self._groups[path]

    def _with_files(self) -> Iterator[tuple[str, str, str]]:
        """Yields each line's path as it is written, label and split, if any, where there is its file, and no line before has it."""
        lines: dict[str, int] = {}
        real = cache(os.path.realpath)
        for line, path, label, split in self._rows():
            if not (found := _real_path(os.path.join(self.root, path), real)):
                advice = "--data.root says what paths are relative to"
                raise self._error(
                    f"there is no file '{printable(self.root / path)}'; {advice}", line
                )
            if (first := lines.setdefault(found, line)) != line:
                raise self._error(f"'{printable(path)}' is in line {first}, too", line)
            yield path, label, split

    def _rows(self) -> Iterator[tuple[int, str, str, str]]:
        """Yields each line's number, path as it is written, label and split, if any."""
        if not self.file.is_file():
            raise UserError(f"--data.file: there is no file '{printable(self.file)}'")
        splits: set[bool] = set()  # True where a line names one
        try:
            with self.file.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, delimiter=self.delimiter, strict=True)
                self._require_columns(reader.fieldnames or [])
                for values in reader:
                    path, label, split, *group = (
                        values.get(column) or "" for column in self.columns.values()
                    )
                    label, split, line = label.strip(), split.strip(), reader.line_num
                    if None in values or not path or not label or "" in group:
                        what = (
                            f"a path, a label and a {printable(self.group)}"
                            if group
                            else "a path and a label"
                        )
                        raise self._error(
                            f"it must have {what}, and no more columns than the first", line
                        )
                    splits.add(bool(split))
                    if split not in ("", *SPLITS) or len(splits) > 1:
                        raise self._error(
                            f"the split must be train, val or test, got '{printable(split)}'", line
                        )
                    if group:
                        self._groups[path] = spelt(group[0])
                    yield line, path, spelt(label), split
        except UnicodeDecodeError as error:
            raise self._error(f"it is not UTF-8 (byte {error.start}); save it as that") from error
        except csv.Error as error:
            raise self._error(str(error)) from error

    def _require_columns(self, found: Any) -> None:
        for option, column in self.columns.items():
            if column not in found and (
                column != "split" or "split" in map(str.lower, found)
            ):  # it may be missing
                raise self._error(
                    f"there is no column '{printable(column)}' among {printable(', '.join(found))[:200] or 'none'};"
                    f" --data.{option} names it, and --data.delimiter is between columns",
                    1,
                )

    def _error(self, text: str, line: int | None = None) -> UserError:
        return UserError(
            f"'{printable(self.file)}'{f', line {line}' if line is not None else ''}: {text}"
        )


def _real_path(path: str, real: Callable[[str], str]) -> str:
    """The path of a file without links, or nothing where there is none; ``real`` remembers folders, as most share them."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):  # the last where it has a NUL
        if stat.S_ISREG(os.lstat(path).st_mode):
            folder, name = os.path.split(path)
            return os.path.join(real(folder), name)
    return os.path.realpath(path) if os.path.isfile(path) else ""
