"""A new data module: handwritten digits that scikit-learn brings along, in memory.

python -m project.fit --data examples.data_module.DigitsDataModule --data.flip false
"""

import torch
from lightkeeper.images import Preprocessing
from sklearn.datasets import load_digits

from project.data import ArrayDataset, AugmentedDataModule


class DigitsDataModule(AugmentedDataModule):
    """1,797 digits of 8 x 8 pixels, magnified to 32 x 32."""

    @property
    def class_names(self) -> list[str]:
        """The ten digits."""
        return list("0123456789")

    @property
    def preprocessing(self) -> Preprocessing:
        """The images as they are."""
        mean, std = self.mean or [0.5] * 3, self.std or [0.25] * 3
        return {"resize": 32, "crop": 32, "mean": mean, "std": std}

    def load(self) -> dict[str, ArrayDataset]:
        """Keeps 70% of each digit for training."""
        images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
        pixels = (images.view(-1, 1, 8, 8) / 16 * 255).byte()
        images = pixels.kron(torch.ones(1, 3, 4, 4, dtype=torch.uint8))
        parts = self.stratified_split(labels.tolist(), {"val": 0.15, "test": 0.15})
        return {split: ArrayDataset(images[at], labels[at], "digit") for split, at in parts.items()}
