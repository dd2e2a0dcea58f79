"""A data module of noise, augmented."""

from typing import Any

from project.data.augmentation import AugmentedDataModule
from project.engine import ArrayDataset
from tests.engine.loading.stubs import Noise, attached, noise_splits, trainer

__all__ = ["NoiseDataModule", "attached", "trainer"]


class NoiseDataModule(AugmentedDataModule):
    class_names = Noise.class_names
    preprocessing = Noise.preprocessing

    def __init__(self, train=60, val=7, test=11, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = {"train": train, "val": val, "test": test}

    def load(self) -> dict[str, ArrayDataset]:
        return noise_splits(**self.sizes)
