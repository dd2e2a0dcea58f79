"""Loader workers, and how their batches travel: in shared memory or, where that or file descriptors are few, by pipe."""

import contextlib
import functools
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy
from torch.utils.data import get_worker_info
from tqdm import tqdm

WORKER_DIED = (
    "a process that loads images has died, perhaps as memory ran out: fewer --data.num_workers or a smaller"
    " --data.prefetch_factor need less"
)
_SHARED_MEMORY = Path("/dev/shm")
_FOR_OTHERS = 16  # file descriptors that the rest of a process may open meanwhile
_PER_WORKER = 8  # those of a worker's queues, for two loaders, as validation has its own
_PER_BATCH = 6  # for each of three tensors one here, and one that is on its way


class BatchSender:
    """Passes on what a dataset returned, which is a batch already; in a worker, puts it where it can be sent.

    torch would put it in shared memory later, in a thread that loses the batch where there is no room; the run would
    then wait for it forever. Here it goes through the worker's pipe instead, and so do all that follow.

    Args:
        by_pipe: Whether to leave shared memory alone from the start.
    """

    def __init__(self, by_pipe: bool = False) -> None:
        self.by_pipe = by_pipe

    def __call__(self, batch: Any) -> Any:
        """Prepares a batch, a tuple of tensors, which arrives as such.

        Args:
            batch: As the dataset returned it.
        """
        if get_worker_info() is None:
            return batch
        if not self.by_pipe:
            try:
                _share(batch)
            except (RuntimeError, OSError):
                self.by_pipe = True
                _remove_remains()
        return type(batch)(*map(_Piped, batch)) if self.by_pipe else batch


def _share(batch: Any) -> None:
    """Puts tensors in shared memory, and sees to it that torch can send their file descriptors."""
    for tensor in batch:
        tensor.share_memory_()
    with contextlib.ExitStack() as stack:
        for _ in range(_FOR_OTHERS):  # for each a copy, and sockets
            stack.callback(os.close, os.dup(0))


def _remove_remains() -> None:
    """Removes the file that torch leaves where there is no room for it; whatever else it shared has no name any more."""
    if get_sharing_strategy() == "file_descriptor":  # type: ignore[no-untyped-call]
        for path in _SHARED_MEMORY.glob(f"torch_{os.getpid()}_*"):
            path.unlink(missing_ok=True)


class _Piped:
    """A tensor that pickles as its bytes and unpickles as a tensor.

    Args:
        tensor: Any, of up to four dimensions; channels_last remains that.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        tensor = self.tensor
        last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        array = (tensor.permute(0, 2, 3, 1) if last else tensor).contiguous().numpy()
        return _unpickle, (array, last)


def _unpickle(array: NDArray[Any], channels_last: bool) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.permute(0, 3, 1, 2) if channels_last else tensor


class WorkerPlan(NamedTuple):
    """How many workers load, and how their batches travel.

    Attributes:
        workers: How many processes load.
        sender: What a worker does with a batch.
        note: Why this is not as usual; empty where it is.
    """

    workers: int
    sender: BatchSender
    note: str = ""


def plan_workers(workers: int, prefetch_factor: int, batch_bytes: int, processes: int) -> WorkerPlan:
    """Fits the workers into what shared memory and the limit on open files have room for.

    Args:
        workers: How many are wanted.
        prefetch_factor: Batches that each holds ready.
        batch_bytes: The size of a batch.
        processes: How many such processes of this machine load at once.
    """
    if workers == 0:
        return WorkerPlan(0, BatchSender())
    batches = workers * prefetch_factor + 2  # the one that is used and one on its way
    spare = _spare_descriptors(workers * _PER_WORKER + batches * _PER_BATCH)
    if spare < workers * _PER_WORKER + batches * _PER_BATCH:
        fitting = min(workers, max(0, spare // _PER_WORKER))
        effect = "batches travel through pipes" if fitting == workers else f"{fitting} loader workers, not {workers}"
        return WorkerPlan(fitting, BatchSender(by_pipe=True), f"few files may be open at once (ulimit -n), so {effect}")
    needed = processes * batches * batch_bytes
    if _free_shared_memory() < 2 * needed:  # half is for others, such as NCCL
        note = f"{_SHARED_MEMORY} has little room for the {needed / 1e6:.1f} MB that loader workers hold ready"
        return WorkerPlan(
            workers, BatchSender(by_pipe=True), f"{note}, so batches travel through pipes, which is slower"
        )
    return WorkerPlan(workers, BatchSender())


@functools.cache
def say_once(note: str) -> None:
    """Prints a note, if there is one, and not again for the next loader."""
    if note:
        tqdm.write(f"note: {note}", file=sys.stderr)


def _spare_descriptors(wanted: int) -> int:
    """How many files this process may open, besides those for others, after raising its limit as far as needed."""
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = opened + _FOR_OTHERS + wanted
    if soft < limit <= hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            soft = limit
    return soft - opened - _FOR_OTHERS


def _free_shared_memory() -> float:
    return shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else float("inf")
