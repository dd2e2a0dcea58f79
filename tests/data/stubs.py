"""A data module of noise, augmented, and files of Parquet."""

from pathlib import Path
from typing import Any

import pytest
from lightkeeper.images import ArrayDataset

from project.data.augmentation import AugmentedDataModule
from tests.engine.toy import ToyData, noise_splits


class NoiseDataModule(AugmentedDataModule):
    class_names = ToyData.class_names
    preprocessing = {"resize": 12, "crop": 12, "mean": [0.1, 0.5, 0.9], "std": [0.2] * 3}

    def __init__(self, train=60, val=7, test=11, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = {"train": train, "val": val, "test": test}

    def load(self) -> dict[str, ArrayDataset]:
        return noise_splits(side=12, **self.sizes)


def write_parquet(file: Path, columns: dict[str, Any]) -> Path:
    """Writes columns, where the extra is installed that reads them."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), file)
    return file
