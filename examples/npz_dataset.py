"""A dataset of torch: arrays of images and labels in an .npz file, laid out as MedMNIST's are.

python -m project.fit --data TorchDatasetModule --data.train examples.npz_dataset.NpzDataset --data.train.path FILE.npz
"""

from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset


class NpzDataset(Dataset[Any]):
    """Images, uint8 (N, height, width, 3), and their labels."""

    def __init__(self, path: str, split: str = "train") -> None:
        arrays = np.load(path)
        self.images, self.targets = arrays[f"{split}_images"], arrays[f"{split}_labels"].flatten()

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.targets[index])
