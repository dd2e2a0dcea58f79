"""flower_photos: 3,670 photographs of five kinds of flowers, the set that TensorFlow's tutorials made known."""

from pathlib import Path
from typing import Any

from project.data.folder import FolderDataModule
from project.engine.errors import UserError
from project.engine.loading.archives import fetch_archive
from project.engine.loading.listing import ClassFiles

URL = "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
MD5 = "6f87fb78e9cc9ab41eff2015b380011d"


class FlowersDataModule(FolderDataModule):
    """flower_photos, downloaded (218 MiB) where it is not there yet; each class split by us, about 80/10/10.

    Args:
        root: Where the folder ``flower_photos`` is, or shall be.
        kwargs: See :class:`project.data.folder.FolderDataModule`.
    """

    def __init__(self, root: str = "data", **kwargs: Any) -> None:
        super().__init__(root, **kwargs)

    @property
    def class_names(self) -> list[str]:
        """Known before the download."""
        return ["daisy", "dandelion", "roses", "sunflowers", "tulips"]

    @property
    def images_root(self) -> Path:
        """The folder that the archive holds."""
        return self.root / "flower_photos"

    def find(self) -> dict[str, ClassFiles]:
        """Lists the class folders, which must be the five."""
        found = super().find()
        if list(found["train"]) != self.class_names:
            raise UserError(
                f"'{self.images_root}' does not hold the five classes of flower_photos; remove it to have it downloaded"
                " again, or use --data FolderDataModule"
            )
        return found

    def prepare_data(self) -> None:
        """Downloads and unpacks once, then looks at every file."""
        fetch_archive(URL, MD5, self.images_root)
        super().prepare_data()
