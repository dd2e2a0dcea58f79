"""Memory: as much at the end of a run as at its start, and little for the names of files."""

import io
from pathlib import Path

import pytest
import torch
from lightkeeper.images import FileDataset
from lightning.pytorch.callbacks import LambdaCallback

from tests.stubs import paths_of
from tests.toy import PREPROCESSING, fit

MAP = Path("/proc/self/smaps_rollup")


def resident() -> int:
    """Kilobytes that this process has in memory."""
    return int(MAP.read_text().partition("Rss:")[2].split()[0])


@pytest.mark.skipif(not MAP.exists(), reason="only Linux says it like this")
def test_memory_does_not_grow_over_epochs(workplace):
    seen: list[int] = []
    watch = LambdaCallback(on_train_epoch_end=lambda *_: seen.append(resident()))
    fit("--trainer.max_epochs=16", callbacks=[watch])
    assert max(seen[8:]) - max(seen[:8]) < 4000


def test_a_list_of_files_takes_40_bytes_an_image_for_names_like_imagenets(tmp_path):
    """In one piece; a list of paths takes ten times as much."""
    names = [f"n{number:08}" for number in range(1440764, 1440864)]
    files = [tmp_path / f"{name}/{name}_{at}.JPEG" for name in names for at in range(300)]
    dataset = FileDataset(files, torch.zeros(len(files)), PREPROCESSING)
    assert paths_of(dataset) == files
    torch.save(dataset, kept := io.BytesIO())
    assert kept.tell() < 40 * len(files)
