"""Memory: as much at the end of a run as at its start, and one copy of the images however many workers there are."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from project.data.batch import ArrayDataset
from tests.data.stubs import NoiseDataModule
from tests.small import small

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says it like this")


def memory(kind: str, process: int | str = "self") -> int:
    """Bytes that a process has in memory, of a kind that Linux tells apart."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(1024 * int(size) for size in re.findall(rf"^{kind}:\s+(\d+) kB", lines, re.M))


class Watch(Callback):
    """Remembers what is in memory at the end of each epoch."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.seen.append(memory("Rss"))


def test_memory_does_not_grow_over_epochs(workplace):
    watch = Watch()
    small("--trainer.max_epochs=16", callbacks=[watch])
    assert max(watch.seen[8:]) - max(watch.seen[:8]) < 4e6


def test_loader_workers_share_one_copy_of_the_images():
    images = torch.full((1000, 3, 256, 256), 7, dtype=torch.uint8)
    data = NoiseDataModule(batch_size=8, num_workers=2)
    data.splits = {"val": ArrayDataset(images, torch.zeros(len(images), dtype=torch.int64), "picture")}
    batches: Any = iter(data.val_dataloader())
    next(batches)
    loader: Any = batches.gi_yieldfrom
    for worker in loader._workers:
        assert memory("Private_(?:Clean|Dirty)", worker.pid) < images.nbytes / 2
