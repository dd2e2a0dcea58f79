"""Batches of image files that are named as they come, prepared as evaluation prepares them."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import AuthenticationError
from types import TracebackType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..errors import LocalError, UnreadableFileError
from ..preprocessing import Preprocessing
from .decode import reason
from .files import prepare
from .workers import LazyDataLoader, leave_signals_to_the_run, plan_workers, say_once, share_batch

_ERROR_BYTES = 160
_AHEAD = 2


class PathBatch(NamedTuple):
    """Images of files; tensors alone, which travel from loader workers and between processes at little cost.

    Attributes:
        images: uint8 (N, 3, crop, crop); black where a file cannot be read.
        errors: uint8 (N, bytes), why a file cannot be read, in UTF-8 with zeros behind it; zeros alone where it can.
    """

    images: Tensor
    errors: Tensor


def error_text(error: Tensor) -> str:
    """Decodes a row of :attr:`PathBatch.errors`; empty where the file can be read."""
    return bytes(error.tolist()).rstrip(b"\0").decode(errors="ignore")


class PathDataset:
    """Image files whose keys are their paths."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self._preprocessing = preprocessing

    def __getitems__(self, paths: Sequence[str]) -> PathBatch:
        """The batch of these files."""
        crop = self._preprocessing["crop"]
        images = torch.zeros((len(paths), 3, crop, crop), dtype=torch.uint8)
        images = images.contiguous(memory_format=torch.channels_last)
        errors = torch.zeros((len(paths), _ERROR_BYTES), dtype=torch.uint8)
        for position, path in enumerate(paths):
            try:
                _require_regular(path)
                images[position] = prepare(path, self._preprocessing)
            except LocalError as error:
                # other errors of the system, such as too many open files, are not about this file
                if not isinstance(error, UnreadableFileError) and not isinstance(error.__cause__, PermissionError):
                    raise
                text = reason(error).encode(errors="replace")[:_ERROR_BYTES]
                errors[position, : len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        return PathBatch(images, errors)


def _require_regular(path: str) -> None:
    """Refuses what opening would wait for, such as a named pipe; what is not there is left to opening it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode):
        raise UnreadableFileError("not a file" if not stat.S_ISDIR(mode) else "a folder")


class PathLoader:
    """Loads batches of paths in the order in which they come, ahead of the model.

    It is no ``DataLoader``, as Lightning would put a sampler of its own in place of the paths.
    """

    def __init__(
        self,
        paths: Iterator[list[str]],
        preprocessing: Preprocessing,
        batch_size: int,
        workers: int,
        pin_memory: bool = False,
        devices: int = 1,
    ) -> None:
        workers, note = plan_workers(workers, _AHEAD, batch_size * 3 * preprocessing["crop"] ** 2, devices)
        say_once(note)
        self._loader = LazyDataLoader(
            cast(Any, PathDataset(preprocessing)),
            batch_sampler=cast(Any, paths),
            num_workers=workers,
            collate_fn=share_batch,
            prefetch_factor=_AHEAD if workers else None,
            pin_memory=pin_memory,
            worker_init_fn=_begin_worker,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def _begin_worker(worker: int) -> None:
    """Lets Ctrl-C interrupt the command at any point, as where it has asked a worker for a batch and takes none."""
    leave_signals_to_the_run(worker)
    sys.excepthook = _unless_nobody_listens


def _unless_nobody_listens(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, OSError | EOFError | AuthenticationError):
        sys.__excepthook__(kind, error, trace)
