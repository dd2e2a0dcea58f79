"""Any folder of classes: ``root/<class>/**``, split by us, or ``root/{train,val,test}/<class>/**``, taken as they are."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from project.data.image_files import ImageFilesDataModule
from project.data.splits import SPLITS, hashed_split
from project.engine.errors import UserError, printable
from project.engine.loading.batch import BatchDataset
from project.engine.loading.listing import ClassFiles, holds_folders, in_sub_folders, list_classes, spelt, split_meant
from project.engine.loading.trainer import world


class FolderDataModule(ImageFilesDataModule):
    """Image files in a folder for each class.

    Args:
        root: Holds a folder for each class; or ``train`` and, where there are such, ``val`` and ``test``, with a folder
            for each class in each. A split that is not there is cut from the training images. Folders within a class's
            folder belong to that class.
        kwargs: See :class:`project.data.image_files.ImageFilesDataModule`.
    """

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()
        self._in_sub_folders: list[Path] = []

    @property
    def images_root(self) -> Path:
        """The folder that holds the classes or the splits."""
        return self.root

    def find(self) -> dict[str, ClassFiles]:
        """Lists the class folders, and cuts what splits are not there from the training images."""
        root = self.images_root
        if not root.is_dir():
            raise UserError(
                f"--data.root: there is no folder '{root}'; it must hold one folder of images for each class"
            )
        names = [name for name in sorted(os.listdir(root)) if split_meant(name) and holds_folders(root / name)]
        given = [split for split in SPLITS if split in names]
        if "train" not in given:
            return self._cut(root, self._list(root), SPLITS[1:])
        for name in names:
            if name not in given:
                split = split_meant(name)
                advice = f"; call it '{split}'" if split not in given else f" beside '{split}'; move one of them away"
                raise UserError(f"'{printable(root / name)}' would be ignored{advice}")
        found = {split: self._list(root / split) for split in given}
        for split in given[1:]:
            if list(found[split]) != list(found["train"]):
                odd = sorted(set(found[split]) ^ set(found["train"]))
                raise UserError(
                    f"'{root / split}' and '{root / 'train'}' need the same classes, but differ in: {', '.join(odd)}"
                )
        return found | self._cut(root / "train", found["train"], [split for split in SPLITS if split not in given])

    def load(self) -> dict[str, BatchDataset]:
        """Opens the three splits; says how many files lie in sub-folders, where any do."""
        datasets = super().load()
        if world(self.trainer)[1] == 0 and (deeper := self.in_sub_folders()):
            count = f"{len(deeper):,} of {sum(self.expected_sizes().values()):,} images"
            first = printable(deeper[0].relative_to(self.images_root))
            tqdm.write(f"note: {count} lie in folders within the class folders, as '{first}'", file=sys.stderr)
        return datasets

    def in_sub_folders(self) -> list[Path]:
        """The files that lie deeper than in their class's own folder."""
        self.files()
        return self._in_sub_folders

    def _list(self, root: Path) -> ClassFiles:
        found = list_classes(root)
        self._in_sub_folders += in_sub_folders(root, found)
        return found

    def _cut(self, root: Path, files: ClassFiles, missing: Sequence[str]) -> dict[str, ClassFiles]:
        fractions = {split: fraction for split, fraction in self.fractions.items() if split in missing}
        found: dict[str, ClassFiles] = {split: {} for split in ("train", *missing)}
        prefix = f"{root}{os.sep}"
        for name, of_class in files.items():
            names = [spelt(str(file).removeprefix(prefix).replace(os.sep, "/")) for file in of_class]
            splits = hashed_split(names, fractions, seed=self.split_seed, class_name=name)
            for split, positions in splits.items():
                found[split][name] = [of_class[position] for position in positions]
        return found
