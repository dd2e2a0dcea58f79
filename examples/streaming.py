"""Image files in a bucket, in a folder for each class, fetched during training; or those of a folder, by ``--data.root``.

pip install s3fs
python -m project.fit --data examples.streaming.StreamingDataModule --data.root s3://BUCKET/FOLDER
"""

from typing import Any

import fsspec
from lightkeeper.exact import UserError
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

from project.data import TorchDatasetModule

SUFFIXES = (*IMG_EXTENSIONS, ".jpe", ".gif", ".avif", ".jp2")


class Images(Dataset[Any]):
    """The bytes of image files, and the labels of their folders."""

    def __init__(self, root: str) -> None:
        files, folder = fsspec.url_to_fs(root)
        paths = {path.removeprefix(folder).strip("/"): path for path in files.find(folder)}
        self.names = sorted(name for name in paths if name.lower().endswith(SUFFIXES))
        # neither hidden ones nor those that are in no folder
        self.names = [name for name in self.names if "/" in name and "/." not in f"/{name}"]
        self.addresses = [files.unstrip_protocol(paths[name]) for name in self.names]
        folders = [name.partition("/")[0] for name in self.names]
        self.classes = sorted({*folders})
        if len(self.classes) < 2 or len(TorchDatasetModule.split_names(self.classes)) > 1:
            found = ", ".join(self.classes[:5]) or "none"
            raise UserError(f"must hold folders of classes, not of splits, got {found}", "root")
        self.targets = [self.classes.index(folder) for folder in folders]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        files, path = fsspec.url_to_fs(self.addresses[index])  # each worker's own connection
        return files.cat_file(path), self.targets[index]


class StreamingDataModule(TorchDatasetModule):
    """A class for each folder in ``root``; splits are cut by names, as ``FolderDataModule`` does."""

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(lambda: Images(root), **kwargs)

    def sample_name(self, position: int) -> str:
        """The file's own name, by which the folder's splits are cut, too."""
        dataset: Any = self.datasets["train"]
        return str(dataset.names[position])
