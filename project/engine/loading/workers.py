"""Loader workers: how many there can be, what they leave to the run, and a loader that starts them late."""

import atexit
import contextlib
import functools
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from tqdm import tqdm

from ..errors import LocalError
from ..run.signals import StopRequest
from .batch import ImageBatch

WORKER_DIED = (
    "a process that loads images has died, perhaps as memory ran out: fewer --data.num_workers or a smaller"
    " --data.prefetch_factor need less"
)
_SHARED_MEMORY = Path("/dev/shm")
_FOR_OTHERS = 16  # file descriptors that the rest of a process may open meanwhile
_PER_WORKER = 8  # those of a worker's queues, for two loaders, as validation has its own
_PER_BATCH = 6  # for each of three tensors one here, and one that is on its way


def plan_workers(workers: int, prefetch_factor: int, batch_bytes: int, processes: int) -> tuple[int, str]:
    """Decides if there is room for loader workers in shared memory and in the limit on open files.

    Returns their number, which is 0 where there is none, and then a note. So many ``processes`` of this machine load at
    once, each with that many workers, of which each holds ``prefetch_factor`` batches ready.
    """
    batches = workers * prefetch_factor + 2  # the one that is used and one on its way
    if workers and not _raise_open_files(workers * _PER_WORKER + batches * _PER_BATCH):
        return 0, "few files may be open at once (ulimit -n), so the run loads images without loader workers"
    needed = processes * batches * batch_bytes
    if workers and _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free < 2 * needed:  # half for others
        return 0, (
            f"{_SHARED_MEMORY} has little room for the {needed / 1e6:.1f} MB that loader workers hold ready, so the run"
            " loads images without them; enlarge it (docker run --shm-size), or use a smaller --data.prefetch_factor"
        )
    return workers, ""


def _raise_open_files(wanted: int) -> bool:
    """Raises this process's limit on open files as far as needed; returns False if that is not allowed."""
    opened = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = opened + _FOR_OTHERS + wanted
    if soft < limit and (limit <= hard or hard == resource.RLIM_INFINITY):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return True
    return soft == resource.RLIM_INFINITY or soft >= limit


@functools.cache
def say_once(note: str) -> None:
    """Prints a note, if there is one, and not again for the next loader."""
    if note:
        tqdm.write(f"note: {note}", file=sys.stderr)


def share_batch(batch: Any) -> Any:
    """Passes on what a dataset returned, which is a batch already; in a worker, puts it in shared memory.

    torch would do that later, in a thread that loses the batch where there is no room; the run would wait forever.
    """
    if get_worker_info() is not None:
        for part in batch:
            if isinstance(part, Tensor):
                part.share_memory_()  # type: ignore[no-untyped-call]
    return batch


class LazyDataLoader(DataLoader[ImageBatch]):
    """A ``DataLoader`` that starts its workers and its sampler with the first batch, not with ``iter``.

    Lightning calls ``iter`` before it knows the epoch, and workers fetch ahead at once: a resumed run would see the
    wrong samples.
    """

    def __iter__(self) -> Iterator[ImageBatch]:  # type: ignore[override]  # a generator is all that a ``for`` needs
        if self.num_workers:
            atexit.unregister(_end_workers)  # once, not for each epoch
            atexit.register(_end_workers)
        try:
            yield from super().__iter__()
        except (EOFError, ConnectionError) as error:  # it died while it sent a batch
            raise LocalError(WORKER_DIED) from error

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: that there is a state tells Lightning that the loader resumes where training does."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: the sampler asks the trainer for the position."""


def leave_signals_to_the_run(_worker: int) -> None:
    """Ignores in a worker the signals that ask the run to stop after its step, for which it needs its workers."""
    for number in StopRequest.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_workers() -> None:
    """Ends workers that an error has left; Python would ask them by a signal that they ignore, and wait."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
