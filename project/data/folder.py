"""Any folder of classes: ``root/<class>/*``, split by us, or ``root/{train,val,test}/<class>/*``, taken as they are."""

from pathlib import Path
from typing import Any

from project.data.image_files import ImageFilesDataModule
from project.data.listing import ClassFiles, holds_folders, list_classes, spelt
from project.data.splits import SPLITS, hashed_split
from project.errors import UserError


class FolderDataModule(ImageFilesDataModule):
    """Image files in a folder for each class.

    Args:
        root: Holds a folder for each class; or ``train`` and, where there are such, ``val`` and ``test``, with a folder
            for each class in each. A split that is not there is cut from the training images.
        kwargs: See :class:`project.data.image_files.ImageFilesDataModule`.
    """

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()

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
        given = [split for split in SPLITS if holds_folders(root / split)]
        if "train" not in given:
            return self._cut(list_classes(root), SPLITS[1:])
        for other in ("valid", "validation"):
            if "val" not in given and holds_folders(root / other):
                raise UserError(f"'{root / other}' would be ignored; call it '{root / 'val'}'")
        found = {split: list_classes(root / split) for split in given}
        for split in given[1:]:
            if list(found[split]) != list(found["train"]):
                odd = sorted(set(found[split]) ^ set(found["train"]))
                raise UserError(
                    f"'{root / split}' and '{root / 'train'}' need the same classes, but differ in: {', '.join(odd)}"
                )
        return found | self._cut(found["train"], [split for split in SPLITS if split not in given])

    def _cut(self, files: ClassFiles, missing: list[str] | tuple[str, ...]) -> dict[str, ClassFiles]:
        fractions = {split: fraction for split, fraction in self.fractions.items() if split in missing}
        found: dict[str, ClassFiles] = {split: {} for split in ("train", *missing)}
        for name, of_class in files.items():
            folder = of_class[0].parent.name
            names = [spelt(f"{folder}/{file.name}") for file in of_class]
            splits = hashed_split(names, fractions, seed=self.split_seed, class_name=name)
            for split, positions in splits.items():
                found[split][name] = [of_class[position] for position in positions]
        return found
