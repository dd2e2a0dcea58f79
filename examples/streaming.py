"""Image files in a bucket, in a folder for each class, fetched during training; or those of a folder, by ``--data.root``.

pip install s3fs
python -m project.fit --data examples.streaming.StreamingDataModule --data.root s3://BUCKET/FOLDER
"""

from typing import Any

import fsspec
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from project.data import TorchDatasetModule


class Images(Dataset[Any]):
    """The bytes of image files, and the labels of their folders."""

    def __init__(self, root: str) -> None:
        files, folder = fsspec.url_to_fs(root)
        paths = sorted(path for path in files.find(folder) if path.lower().endswith(IMG_EXTENSIONS))
        self.addresses = [files.unstrip_protocol(path) for path in paths]
        self.names = [path.removeprefix(folder).strip("/") for path in paths]
        folders = [name.partition("/")[0] for name in self.names]
        self.classes = sorted({*folders})
        self.targets = [self.classes.index(folder) for folder in folders]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        files, path = fsspec.url_to_fs(self.addresses[index])  # each worker's own connection
        return files.cat_file(path), self.targets[index]


class StreamingDataModule(TorchDatasetModule):
    """The classes and splits of ``FolderDataModule``."""

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(lambda: Images(root), **kwargs)

    def sample_name(self, position: int) -> str:
        """The file's own name, by which the folder's splits are cut, too."""
        dataset: Any = self.datasets["train"]
        return str(dataset.names[position])
