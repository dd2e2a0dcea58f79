"""Image files listed in a table, with a label and perhaps a split for each."""

from pathlib import Path
from typing import Any

from lightkeeper.images import ImageFilesDataModule

from project.data.augmentation import AugmentedDataModule


class CSVDataModule(AugmentedDataModule, ImageFilesDataModule):
    """Image files listed in a table: CSV, TSV, JSON lines or Parquet.

    Columns with usual names are found without an option. Splits come from a column, from separate
    tables (``val.csv`` beside ``train.csv``), or from the images' folders.

    Args:
        file: The table; if each split has one, that of ``train``.
        root: The folder that paths in the table are relative to, by default its own; absolute paths
            are taken as they are, and ids are looked up among the names of the images in it.
        path_column: The column of the image files or ids.
        label_column: The column of the classes, by name or number; by default, columns of 0 and 1
            for each class are taken, too.
        split_column: The column of ``train``, ``val`` or ``test``, or, if it is called ``valid`` or
            ``is_valid``, of 1 for ``val``. A split that no row names is cut from the training
            images.
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
        self.open_table(
            self.file,
            root,
            path_column=path_column,
            label_column=label_column,
            split_column=split_column,
        )

    @property
    def source(self) -> Path:
        """The table, from which the classes and splits are read."""
        return self.file
