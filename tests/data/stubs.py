"""A data module of noise, augmented, and files of Parquet."""

from pathlib import Path
from typing import Any

import pytest

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


def write_parquet(file: Path, columns: dict[str, Any]) -> Path:
    """Writes columns, where the extra is installed that reads them."""
    pyarrow = pytest.importorskip("pyarrow", reason="the extra tables is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), file)
    return file
