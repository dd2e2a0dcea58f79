"""One copy of the images in memory for all processes of a machine."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import distributed

from ..errors import UserError
from .batch import ArrayDataset


def load_once_a_machine(
    load: Callable[[], Mapping[str, ArrayDataset]], trainer: Trainer | None
) -> Mapping[str, ArrayDataset]:
    """Loads datasets in the first process of each machine, and lets all of its processes see the same memory.

    They map one temporary file, which has no name any more when this returns: the system takes it back when the last
    of them ends, however that happens.
    """
    if trainer is None or not (distributed.is_available() and distributed.is_initialized()):
        return load()
    name = trainer.strategy.broadcast(f"images-{secrets.token_hex(8)}")
    path = Path(tempfile.gettempdir()) / f"{name}-{trainer.node_rank}"  # machines may have that folder in common
    try:
        if trainer.local_rank == 0:
            _write(path, load())
        trainer.strategy.barrier()
        # each process would get its own copy of a page that it wrote to; none does
        splits = torch.load(path, mmap=True, weights_only=True)
        trainer.strategy.barrier()
    finally:
        if trainer.local_rank == 0:
            path.unlink(missing_ok=True)
    return {split: ArrayDataset(*content) for split, content in splits.items()}


def _write(path: Path, splits: Mapping[str, ArrayDataset]) -> None:
    needed = sum(data.images.nbytes + data.labels.nbytes for data in splits.values())
    if shutil.disk_usage(path.parent).free < needed + 2**20:
        raise UserError(
            f"'{path.parent}' has no room for the {needed / 1e6:.0f} MB of images that processes share; name another"
            " folder by the variable TMPDIR"
        )
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        torch.save({split: (data.images, data.labels, data.names) for split, data in splits.items()}, file)
