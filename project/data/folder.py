"""Any folder of classes: ``root/<class>/**``, split by us, or ``root/{train,val,test}/<class>/**``, taken as they are."""

import os
from pathlib import Path
from typing import Any

from project.data.augmentation import AugmentedDataModule
from project.engine import ImageFilesDataModule
from project.engine.errors import UserError, printable
from project.engine.loading.paths import PathBlock, Paths
from project.engine.loading.scan import (
    ImageScan,
    class_folders,
    holds_folders,
    list_classes,
    spelt,
    split_meant,
)
from project.engine.loading.splits import SPLITS


class FolderDataModule(AugmentedDataModule, ImageFilesDataModule):
    """Image files in a folder for each class.

    Args:
        root: Holds a folder for each class; or ``train`` and, where there are such, ``val`` and ``test``, with a folder
            for each class in each. A split that is not there is cut from the training images. Folders within a class's
            folder belong to that class.
        kwargs: See ``ImageFilesDataModule``.
    """

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()

    @property
    def source(self) -> Path:
        """The folder that holds the classes or the splits."""
        return self.root

    def find(self) -> dict[str, dict[str, Paths]]:
        """Lists the class folders, and cuts what splits are not there from the training images."""
        root = self.images_root
        if not root.is_dir():
            raise UserError(
                f"--data.root: there is no folder '{root}'; it must hold one folder of images for each class"
            )
        given, block, scan = _split_folders(root), PathBlock(), ImageScan(self.bands)
        places = {split: root / split for split in given} or {"train": root}
        found = {split: list_classes(place, block, scan) for split, place in places.items()}
        for split in given[1:]:
            if odd := sorted(set(found[split]) ^ set(found["train"])):
                raise UserError(
                    f"'{root / split}' and '{root / 'train'}' need the same classes, but differ in: {', '.join(odd)}"
                )
        return found | self.cut(found["train"], root / "train" if given else root, given)

    def find_class_names(self) -> list[str]:
        """Lists the class folders alone."""
        root = self.images_root
        return [
            spelt(folder.name)
            for folder in class_folders(root / "train" if _split_folders(root) else root)
        ]


def _split_folders(root: Path) -> list[str]:
    """The splits that have folders, the training set first; none where there is no folder ``train``."""
    names = [
        name
        for name in sorted(os.listdir(root))
        if split_meant(name) and holds_folders(root / name)
    ]
    given = [split for split in SPLITS if split in names]
    if "train" not in given:
        return []
    if others := [name for name in names if name not in given]:
        split = split_meant(others[0])
        advice = (
            f"; call it '{split}'"
            if split not in given
            else f" beside '{split}'; move one of them away"
        )
        raise UserError(f"'{printable(root / others[0])}' would be ignored{advice}")
    return given
