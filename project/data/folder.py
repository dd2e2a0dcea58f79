"""Image files in a folder for each class, with folders for the splits or split at random."""

from pathlib import Path
from typing import Any

from lightkeeper.images import ImageFilesDataModule

from project.data.augmentation import AugmentedDataModule


class FolderDataModule(AugmentedDataModule, ImageFilesDataModule):
    """Image files in a folder for each class.

    Args:
        root: Holds a folder for each class; or ``train`` and perhaps ``val`` and ``test``, or other
            usual names of splits, with a folder for each class in each. A missing split is cut from
            the training images. Folders within a class's folder belong to that class.
        kwargs: See ``ImageFilesDataModule``.
    """

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()

    @property
    def source(self) -> Path:
        """The folder that holds the classes or the splits."""
        return self.root
