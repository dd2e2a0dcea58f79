"""Image files that a table names, with a label and, if there is one, a split for each."""

from pathlib import Path
from typing import Any

from project.data.augmentation import AugmentedDataModule
from project.engine import ImageFilesDataModule


class CSVDataModule(AugmentedDataModule, ImageFilesDataModule):
    """Image files that a table names: CSV, TSV, JSON lines or Parquet.

    Columns of usual names need no option. The images of a table have their splits from a column,
    from tables of their own (``val.csv`` beside ``train.csv``), or from their folders.

    Args:
        file: The table; of tables for each split, that of ``train``.
        root: The folder that paths in the table are relative to, by default its own; absolute paths
            are taken as they are, and ids are looked up among the names of the images in it.
        path_column: The column of the image files or ids.
        label_column: The column of the classes, by name or number; by default, columns of 0 and 1
            for each class are taken, too.
        split_column: The column of ``train``, ``val`` or ``test``, or of 1 for ``val``. A split
            that no row names is cut from the training images.
        kwargs: See ``ImageFilesDataModule``.
    """

    def __init__(
        self,
        file: str,
        root: str | None = None,
        path_column: str | None = None,
        label_column: str | None = None,
        split_column: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.file = Path(file).expanduser()
        columns = {
            "path_column": path_column,
            "label_column": label_column,
            "split_column": split_column,
        }
        folder = Path(root).expanduser() if root is not None else None
        self.root = self.read_from_table(self.file, folder, columns)

    @property
    def source(self) -> Path:
        """The table itself."""
        return self.file

    @property
    def images_root(self) -> Path:
        """The folder that paths in the table are relative to."""
        return self.root
