"""One copy in memory for all processes of a machine."""

import os
import secrets
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Trainer
from torch import distributed

from ..errors import UserError

T = TypeVar("T")


def once_a_machine(make: Callable[[], T], trainer: Trainer | None) -> T:
    """Makes an object once per machine; its processes share the tensors in memory.

    They map one temporary file, which has no name any more when this returns: the system takes it
    back when the last of them ends, however that happens. Where processes cannot communicate, each
    makes it for itself.
    """
    if trainer is None or not (distributed.is_available() and distributed.is_initialized()):
        return make()
    name = trainer.strategy.broadcast(f"images-{secrets.token_hex(8)}")
    path = (
        Path(tempfile.gettempdir()) / f"{name}-{trainer.node_rank}"
    )  # machines may have that folder in common
    try:
        if trainer.local_rank == 0:
            _write(path, make())
        trainer.strategy.barrier()
        # each process would get its own copy of a page that it wrote to; none does
        shared: T = torch.load(
            path, mmap=True, weights_only=False
        )  # no stranger's file: this run has just made it
        trainer.strategy.barrier()
    finally:
        if trainer.local_rank == 0:
            path.unlink(missing_ok=True)
    return shared


def _write(path: Path, content: Any) -> None:
    try:
        with open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:  # torch's own, where a part could not be written
        raise UserError(
            f"'{path.parent}' does not take the images that processes share; make room, or name"
            " another folder by the"
            " variable TMPDIR"
        ) from error
