"""A data module of noise, and batches that are compared."""

from typing import Any

import torch
from lightkeeper.images import ArrayDataset

from project.data.augmentation import AugmentedDataModule


class NoiseDataModule(AugmentedDataModule):
    """Noise of so many images for each split, brighter for each of three classes in turns."""

    class_names = ["dark", "grey", "light"]
    preprocessing = {"resize": 12, "crop": 12, "mean": [0.1, 0.5, 0.9], "std": [0.2] * 3}

    def __init__(self, train=60, val=7, test=11, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = {"train": train, "val": val, "test": test}

    def load(self) -> dict[str, ArrayDataset]:
        generator = torch.Generator().manual_seed(0)
        splits = {}
        for split, size in self.sizes.items():
            labels = torch.arange(size) % 3
            images = torch.randint(64, (size, 3, 12, 12), generator=generator)
            images += 64 * labels[:, None, None, None]
            splits[split] = ArrayDataset(images.to(torch.uint8), labels, split)
        return splits


def attached(data: Any) -> Any:
    """A data module that is ready to serve its first epoch."""
    data.prepare_data()
    data.setup("fit")
    return data


def require_served_alike(*modules: Any) -> None:
    """Compares the batches of two data modules to the last bit."""
    first, second = map(attached, modules)
    assert first.class_names == second.class_names
    for split in ("train", "val", "test"):
        assert torch.equal(first.splits[split].labels, second.splits[split].labels)
        batches = (getattr(data, f"{split}_dataloader")() for data in (first, second))
        for one, other in zip(*batches, strict=True):
            assert all(map(torch.equal, one, other))
