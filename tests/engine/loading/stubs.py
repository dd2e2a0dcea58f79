"""A stand-in for Lightning's trainer, and data modules of image files and of noise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from project.engine import ArrayDataset, ImageBatch, ImageDataModule, ImageFilesDataModule
from tests.engine.toy import cases as cases


def trainer(*, epoch=0, batches_done=0, world_size=1, rank=0, training=True, overfit_batches=0.0):
    progress = SimpleNamespace(current=SimpleNamespace(processed=epoch))
    batch_progress = SimpleNamespace(current=SimpleNamespace(ready=batches_done))
    ranks = {"world_size": world_size, "global_rank": rank, "local_rank": rank, "num_devices": 1}
    state = {"training": training, "testing": False, "predicting": False, "current_epoch": epoch}
    strategy = SimpleNamespace(root_device=torch.device("cpu"), broadcast=lambda value: value)
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


class Noise(ImageDataModule):
    """Three classes in memory."""

    class_names = ["a", "b", "c"]
    preprocessing = {"resize": 12, "crop": 12, "mean": [0.1, 0.5, 0.9], "std": [0.2, 0.2, 0.2]}

    def load(self):
        return noise_splits(train=60, val=7, test=11)


def noise_splits(**sizes: int) -> dict[str, ArrayDataset]:
    """Noise of so many images for each split, of three classes in turns."""
    generator = torch.Generator().manual_seed(0)
    splits = {}
    for split, size in sizes.items():
        images = torch.randint(256, (size, 3, 12, 12), dtype=torch.uint8, generator=generator)
        splits[split] = ArrayDataset(images, torch.arange(size) % 3, split)
    return splits


class Files(ImageFilesDataModule):
    """Image files in a folder for each class."""

    def __init__(self, root: Path, **options: Any) -> None:
        sizes = {"image_size": 16, "batch_size": 4, "num_workers": 0}
        super().__init__(**sizes | options)
        self.root = root

    @property
    def source(self) -> Path:
        return self.root


def by_class(data) -> dict[str, dict[str, list[Path]]]:
    """The listed files of each split and class."""
    files: dict[str, dict[str, list[Path]]] = {}
    for file in data.files():
        files.setdefault(file.split, {}).setdefault(file.label, []).append(Path(file.path))
    return files


def epoch_of(data, split: str = "train") -> list[ImageBatch]:
    """The batches of a loader as they reach the model."""
    batches = []
    for batch in getattr(data, f"{split}_dataloader")():
        moved = data.on_before_batch_transfer(batch, 0)
        batches.append(data.on_after_batch_transfer(moved, 0))
    return batches


def by_index(batches: list[ImageBatch]) -> ImageBatch:
    """All batches as one, in the order of their indices."""
    fields = [torch.cat(field) for field in zip(*batches, strict=True)]
    order = fields[2].argsort()
    return ImageBatch(*(field[order] for field in fields))


def require_equal(first, second):
    assert all(map(torch.equal, first, second))
