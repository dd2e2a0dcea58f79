"""Stand-ins for Lightning's trainer, and a data module of noise."""

from types import SimpleNamespace
from typing import Any

import torch

from project.data.augmentation import AugmentedDataModule
from project.engine.loading.batch import ArrayDataset


class NoiseDataModule(AugmentedDataModule):
    class_names = ["a", "b", "c"]
    preprocessing = {"resize": 12, "crop": 12, "mean": [0.1, 0.5, 0.9], "std": [0.2, 0.2, 0.2]}

    def __init__(self, train=60, val=7, test=11, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes = {"train": train, "val": val, "test": test}

    def load(self) -> dict[str, ArrayDataset]:
        generator = torch.Generator().manual_seed(0)
        found = {}
        for split, size in self.sizes.items():
            images = torch.randint(256, (size, 3, 12, 12), dtype=torch.uint8, generator=generator)
            found[split] = ArrayDataset(images, torch.arange(size) % 3, split)
        return found


def trainer(*, epoch=0, batches_done=0, world_size=1, rank=0, training=True, overfit_batches=0.0):
    progress = SimpleNamespace(current=SimpleNamespace(processed=epoch))
    batch_progress = SimpleNamespace(current=SimpleNamespace(ready=batches_done))
    ranks = {"world_size": world_size, "global_rank": rank, "local_rank": rank, "num_devices": 1}
    state = {"training": training, "testing": False, "predicting": False, "current_epoch": epoch}
    strategy = SimpleNamespace(root_device=torch.device("cpu"), broadcast=lambda found: found)
    loop = SimpleNamespace(
        epoch_progress=progress, epoch_loop=SimpleNamespace(batch_progress=batch_progress)
    )
    return SimpleNamespace(
        **ranks, **state, overfit_batches=overfit_batches, strategy=strategy, fit_loop=loop
    )


def attached(data, **position):
    """A data module that a trainer has set up."""
    data.trainer = trainer(**position)
    data.prepare_data()
    data.setup("fit")
    return data
