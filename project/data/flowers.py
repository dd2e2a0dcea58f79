"""flower_photos: 3,670 photographs of five kinds of flowers, known from TensorFlow's tutorials."""

from pathlib import Path
from typing import Any

from project.data.folder import FolderDataModule

URL = "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
MD5 = "6f87fb78e9cc9ab41eff2015b380011d"


class FlowersDataModule(FolderDataModule):
    """flower_photos, downloaded (218 MiB) if it is missing; each class is split about 80/10/10.

    Args:
        root: The folder that contains ``flower_photos``, or will.
        kwargs: See ``FolderDataModule``.
    """

    def __init__(self, root: str = "data", **kwargs: Any) -> None:
        super().__init__(root, **kwargs)
        # known before the download
        self.expect_classes(["daisy", "dandelion", "roses", "sunflowers", "tulips"], URL)

    @property
    def source(self) -> Path:
        """The folder that the archive holds."""
        return self.root / "flower_photos"

    def prepare_data(self) -> None:
        """Downloads and unpacks once, then checks every file."""
        self.fetch_archive(URL, MD5, self.images_root)
        super().prepare_data()
