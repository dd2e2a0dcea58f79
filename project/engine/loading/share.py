"""One copy in memory for all processes of a machine."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer
from torch import Tensor, distributed

from ..errors import UserError

T = TypeVar("T")


def once_a_machine(
    make: Callable[[], T], pack: Callable[[T], Any], unpack: Callable[[Any], T], trainer: Trainer | None
) -> T:
    """Makes something in the first process of each machine, and lets all of its processes see the same memory.

    They map one temporary file, which has no name any more when this returns: the system takes it back when the last
    of them ends, however that happens.

    Args:
        make: Makes it.
        pack: Returns it as tensors and plain data.
        unpack: Makes it from these.
        trainer: The trainer, whose processes can communicate by now; without, this process makes it for itself.
    """
    if trainer is None or not (distributed.is_available() and distributed.is_initialized()):
        return make()
    name = trainer.strategy.broadcast(f"images-{secrets.token_hex(8)}")
    path = Path(tempfile.gettempdir()) / f"{name}-{trainer.node_rank}"  # machines may have that folder in common
    try:
        if trainer.local_rank == 0:
            _write(path, pack(make()))
        trainer.strategy.barrier()
        # each process would get its own copy of a page that it wrote to; none does
        content = torch.load(path, mmap=True, weights_only=True)
        trainer.strategy.barrier()
    finally:
        if trainer.local_rank == 0:
            path.unlink(missing_ok=True)
    return unpack(content)


def _write(path: Path, content: Any) -> None:
    needed = _size(content)
    if shutil.disk_usage(path.parent).free < needed + 2**20:
        raise UserError(
            f"'{path.parent}' has no room for the {needed / 1e6:.0f} MB of images that processes share; name another"
            " folder by the variable TMPDIR"
        )
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        torch.save(content, file)


def _size(content: Any) -> int:
    """The bytes of all tensors in plain data."""
    if isinstance(content, Tensor):
        return content.nbytes
    parts: Iterable[Any] = content.values() if isinstance(content, Mapping) else content
    return sum(map(_size, parts)) if isinstance(content, Mapping | list | tuple) else 0
