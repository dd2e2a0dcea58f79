"""Memory: as much at the end of a run as at its start, and one copy of the images for all loader workers."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from project.engine import ArrayDataset, FileDataset
from tests.conftest import small
from tests.data.stubs import NoiseDataModule
from tests.engine.toy import PREPROCESSING

needs_linux = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says it like this"
)


def memory(kind: str, process: int | str = "self") -> int:
    """Bytes that a process has in memory, of a kind that Linux tells apart."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(1024 * int(size) for size in re.findall(rf"^{kind}:\s+(\d+) kB", lines, re.M))


@needs_linux
def test_memory_does_not_grow_over_epochs(workplace):
    seen: list[int] = []
    watch = LambdaCallback(on_train_epoch_end=lambda *_: seen.append(memory("Rss")))
    small("--trainer.max_epochs=16", callbacks=[watch])
    assert max(seen[8:]) - max(seen[:8]) < 4e6


@needs_linux
def test_loader_workers_share_one_copy_of_the_images():
    images = torch.full((1000, 3, 256, 256), 7, dtype=torch.uint8)
    data = NoiseDataModule(batch_size=8, num_workers=2)
    data.splits = {
        "val": ArrayDataset(images, torch.zeros(len(images), dtype=torch.int64), "image")
    }
    loader: Any = data.val_dataloader()
    next(iter(loader))
    for worker in loader._iterator._workers:
        assert memory("Private_(?:Clean|Dirty)", worker.pid) < images.nbytes / 2
    loader._iterator._shutdown_workers()  # or they end in another test, whenever Python collects garbage


def test_a_list_of_files_takes_40_bytes_an_image_for_names_like_imagenets(tmp_path):
    """In one piece; a list of paths takes ten times as much."""
    names = [f"n{number:08}" for number in range(1440764, 1440864)]
    files = [tmp_path / f"{name}/{name}_{at}.JPEG" for name in names for at in range(300)]
    dataset = FileDataset(files, torch.zeros(len(files)), PREPROCESSING)
    assert [*dataset.files] == files
    torch.save(dataset, kept := io.BytesIO())
    assert kept.tell() < 40 * len(files)
