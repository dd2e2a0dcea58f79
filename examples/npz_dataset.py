"""A dataset of torch: arrays of images and labels in an .npz, .mat or HDF5 file, named as MedMNIST's are.

python -m project.fit --data TorchDatasetModule --data.train examples.npz_dataset.ArrayFile --data.train.path FILE.npz
"""

from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

READERS = {".npz": "numpy.load", ".mat": "scipy.io.loadmat", ".h5": "h5py.File"}


class ArrayFile(Dataset[Any]):
    """Images, uint8 (N, height, width, 3), and their labels, which ``path`` has by name."""

    def __init__(self, path: str, split: str = "train") -> None:
        module, _, function = READERS[path[path.rindex(".") :]].rpartition(".")
        arrays = getattr(import_module(module), function)(path)
        self.images = arrays[f"{split}_images"]
        self.targets = np.ravel(arrays[f"{split}_labels"])

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.targets[index])
