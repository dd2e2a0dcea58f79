"""Image files in a bucket, in a folder for each class, fetched during training; or those of a folder, by ``--data.root``.

pip install litdata s3fs obstore zstd
python -m project.fit --data examples.streaming.StreamingDataModule --data.root s3://BUCKET/FOLDER
"""

from typing import Any

import fsspec
from litdata import StreamingRawDataset
from litdata.raw.indexer import FileIndexer
from torch.utils.data import Dataset

from project.data import TorchDatasetModule
from project.engine.loading.decode import IMAGE_SUFFIXES


class Listing(FileIndexer):  # type: ignore[misc]  # where litdata is not installed
    """Lists the files at each start: litdata's would write an index into the bucket, and not see what is added later."""

    def build_or_load_index(
        self, input_dir: str, cache_dir: str, storage_options: Any, *_: Any
    ) -> Any:
        """Lists the files."""
        return self.discover_files(input_dir, storage_options)


class Images(Dataset[Any]):
    """The bytes of image files, and the labels of their folders."""

    def __init__(self, root: str) -> None:
        self.files = StreamingRawDataset(
            root, indexer=Listing(extensions=[*IMAGE_SUFFIXES]), max_prefetch=0
        )
        self.files.items.sort(key=lambda file: file.path)
        start = len(str(self.files.input_dir.url or self.files.input_dir.path).rstrip("/")) + 1
        self.names = [file.path[start:] for file in self.files.items]
        folders = [name.partition("/")[0] for name in self.names]
        self.classes = sorted({*folders})
        labels = {name: label for label, name in enumerate(self.classes)}
        self.targets = [labels[folder] for folder in folders]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        # not by litdata, whose client for S3 would no longer work in loader workers
        with fsspec.open(self.files.items[index].path, "rb") as file:
            return file.read(), self.targets[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[bytes, int]]:
        labels = [self.targets[at] for at in indices]
        return [*zip(self.files.__getitems__(indices), labels, strict=True)]


class StreamingDataModule(TorchDatasetModule):
    """The classes and splits of ``FolderDataModule``."""

    def __init__(self, root: str, **kwargs: Any) -> None:
        super().__init__(lambda: Images(root), **kwargs)

    def sample_name(self, position: int) -> str:
        """The file's own name, by which the folder's splits are cut, too."""
        dataset: Any = self.datasets()["train"]
        return str(dataset.names[position])
