"""A stand-in for Lightning's trainer, and data modules of image files."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightkeeper.images import FileDataset, ImageBatch, ImageFilesDataModule
from lightning.pytorch import LightningModule

from tests.image_files import noise
from tests.toy import cases as cases


def trainer(*, epoch=0, batches_done=0, world_size=1, rank=0, training=True):
    batch_progress = SimpleNamespace(current=SimpleNamespace(ready=batches_done))
    loop = SimpleNamespace(
        epoch_progress=SimpleNamespace(current=SimpleNamespace(processed=epoch)),
        epoch_loop=SimpleNamespace(batch_progress=batch_progress),
    )
    return SimpleNamespace(
        world_size=world_size,
        global_rank=rank,
        local_rank=rank,
        num_devices=1,
        training=training,
        testing=False,
        predicting=False,
        current_epoch=epoch,
        overfit_batches=0.0,
        strategy=SimpleNamespace(root_device=torch.device("cpu"), broadcast=lambda value: value),
        fit_loop=loop,
        lightning_module=LightningModule(),
    )


def attached(data, **position):
    """A data module that a trainer has set up."""
    data.trainer = trainer(**position)
    data.prepare_data()
    data.setup("fit")
    return data


class Files(ImageFilesDataModule):
    """Image files in a folder for each class."""

    def __init__(
        self,
        root: str,
        image_size: int | tuple[int, int] = 16,
        batch_size: int = 4,
        num_workers: int | None = 0,
        **options: Any,
    ) -> None:
        sizes: dict[str, Any] = {"image_size": image_size, "batch_size": batch_size}
        super().__init__(num_workers=num_workers, **sizes, **options)
        self.root = Path(root)

    @property
    def source(self) -> Path:
        return self.root


class Table(ImageFilesDataModule):
    """Image files that a table lists."""

    def __init__(
        self,
        file: str,
        root: str | None = None,
        path_column: str | None = None,
        label_column: str | None = None,
        split_column: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{"image_size": 16, "batch_size": 4, "num_workers": 0} | options)
        self.file = Path(file)
        self.open_table(
            self.file,
            root,
            path_column=path_column,
            label_column=label_column,
            split_column=split_column,
        )

    @property
    def source(self) -> Path:
        return self.file


class Samples:
    """Samples of a list or a function, and attributes; no dataset of torch."""

    def __init__(self, samples: Any = None, size: int = 30, **facts: Any) -> None:
        self.sample = samples or (lambda index: (noise(20, 18, seed=index), index % 3))
        self.size = size
        self.__dict__.update(facts)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


def write_parquet(file: Path, columns: dict[str, Any]) -> Path:
    """Writes columns, where the extra is installed that reads them."""
    pyarrow = pytest.importorskip("pyarrow", reason="the package pyarrow is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), file)
    return file


def by_class(data) -> dict[str, dict[str, list[Path]]]:
    """The listed files of each split and class."""
    files: dict[str, dict[str, list[Path]]] = {}
    for file in data.files():
        files.setdefault(file.split, {}).setdefault(file.label, []).append(Path(file.path))
    return files


def paths_of(dataset: FileDataset) -> list[Path]:
    """The paths of all files, in the order of their indices."""
    return [dataset.path(index) for index in range(len(dataset))]


def epoch_of(data, split: str = "train") -> list[ImageBatch]:
    """The batches of a loader as they reach the model."""
    batches = []
    for batch in getattr(data, f"{split}_dataloader")():
        moved = data.on_before_batch_transfer(batch, 0)
        batches.append(data.on_after_batch_transfer(moved, 0))
    return batches


def joined(batches: Iterable[ImageBatch]) -> ImageBatch:
    """All batches as one."""
    return ImageBatch(*map(torch.cat, zip(*batches, strict=True)))


def by_index(batches: Iterable[ImageBatch]) -> ImageBatch:
    """All batches as one, in the order of their indices."""
    whole = joined(batches)
    return ImageBatch(*(field[whole.indices.argsort()] for field in whole))


def require_equal(first, second):
    assert all(map(torch.equal, first, second))
