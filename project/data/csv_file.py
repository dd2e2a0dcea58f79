"""Image files that a CSV names, with a label and, if there is one, a split for each."""

from pathlib import Path
from typing import Any

from project.data.augmentation import AugmentedDataModule
from project.engine import ImageFilesDataModule


class CSVDataModule(AugmentedDataModule, ImageFilesDataModule):
    """Image files that a CSV names: UTF-8, with a first line that names the columns.

    Args:
        file: The CSV.
        root: The folder that paths in the CSV are relative to, by default its own; absolute paths
            are taken as they are.
        path_column: The column of the image files.
        label_column: The column of the names of the classes.
        split_column: The column of ``train``, ``val`` or ``test``; there need not be one of the
            default name. A split that no line names is cut from the training images.
        delimiter: The character between columns, by default the comma, semicolon, tab or bar of the
            first line.
        kwargs: See ``ImageFilesDataModule``.
    """

    def __init__(
        self,
        file: str,
        root: str | None = None,
        path_column: str = "path",
        label_column: str = "label",
        split_column: str = "split",
        delimiter: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.file = Path(file).expanduser()
        self.root = Path(root).expanduser() if root is not None else self.file.parent
        columns = {
            "path_column": path_column,
            "label_column": label_column,
            "split_column": split_column,
        }
        self.read_from_table(self.file, columns, delimiter)

    @property
    def source(self) -> Path:
        """The CSV itself."""
        return self.file

    @property
    def images_root(self) -> Path:
        """The folder that paths in the file are relative to."""
        return self.root
