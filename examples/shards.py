"""Images in shards: tar files of WebDataset's in a bucket or folder, of which one request fetches thousands of images.

pip install s3fs
python -m examples.write_shards FOLDER SHARDS
python -m project.fit --data examples.shards.ShardsDataModule --data.root s3://BUCKET/SHARDS

The loaders of WebDataset and LitData are iterable: which sample is next depends on the history of workers and processes, so a
killed run repeats or loses some. An index of where each image lies in its tar file makes a map-style dataset of the same files,
whose order is a function of (seed, epoch), so that runs resume exactly.
"""

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import torch
from filelock import FileLock
from jsonargparse.typing import PositiveInt
from lightkeeper.exact import uniform
from torch import Tensor
from torch.utils.data import Dataset

from project.data import TorchDatasetModule


class Shards(Dataset[Any]):
    """The bytes of images and their labels; each machine fetches a shard once, and reads its images from its disk."""

    def __init__(self, root: str, cache: str, kept: int, split: str) -> None:
        with fsspec.open(f"{root}/{split}.npz") as file:
            index = dict(np.load(file))
        self.classes = index["classes"].tolist()
        self.files, self.places, self.targets = (index[x] for x in ("files", "places", "labels"))
        self.root, self.cache, self.kept = root, Path(cache).expanduser(), kept

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        shard, start, size = self.places[index].tolist()
        while True:  # another process may have made room in between
            with suppress(FileNotFoundError), open(self.cache / self.files[shard], "rb") as file:
                file.seek(start)
                return file.read(size), int(self.targets[index])
            self.fetch(self.files[shard])

    def fetch(self, name: str) -> None:
        """Fetches a shard, unless another process just has, and removes the oldest beyond ``kept``."""
        self.cache.mkdir(parents=True, exist_ok=True)
        path = self.cache / name
        with FileLock(self.cache / "lock"):
            if path.exists():
                return
            files, address = fsspec.url_to_fs(f"{self.root}/{name}")  # each worker's own connection
            files.get_file(address, f"{path}.part")
            os.replace(f"{path}.part", path)
            for old in sorted(self.cache.glob("*.tar"), key=os.path.getmtime)[: -self.kept]:
                old.unlink()


class ShardsDataModule(TorchDatasetModule):
    """The splits that were written; ``class_balance`` draws from all shards at once.

    Args:
        root: The folder or bucket of the shards.
        cache: A folder of this machine for shards that were fetched.
        kept: How many it keeps: at least twice ``mixed``, and all of validation and test.
        mixed: The number of shards whose images are shuffled together.
        kwargs: See ``TorchDatasetModule``.
    """

    not_remembered = ("train", "val", "test", "root", "cache")

    def __init__(
        self,
        root: str,
        cache: str = "data/shards",
        kept: PositiveInt = 64,
        mixed: PositiveInt = 8,
        **kwargs: Any,
    ) -> None:
        part = partial(Shards, root, cache, kept)
        val, test = partial(part, "val"), partial(part, "test")
        super().__init__(partial(part, "train"), val=val, test=test, **kwargs)
        self.mixed = int(mixed)

    def order(self, epoch: int) -> Tensor:
        """Takes a few shards after the other, in another order in each epoch, and shuffles their images."""
        shards = torch.from_numpy(self.datasets["train"].places[:, 0])
        order = uniform(self.seed, epoch, torch.arange(int(shards.max()) + 1), 1001)[:, 0].argsort()
        numbers = uniform(self.seed, epoch, torch.arange(len(shards)), 1002)[:, 0].double()
        return (order.argsort()[shards] // self.mixed + numbers).argsort(stable=True)
