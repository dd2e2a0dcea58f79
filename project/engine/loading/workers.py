"""A loader that starts its workers late, and their limits and signals."""

import atexit
import contextlib
import copy
import multiprocessing
import multiprocessing.util
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, cast

from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from ..errors import WORKER_DIED, LocalError
from ..run.processes import StopRequest
from ..upstream import BatchQueue, ResumableLoader

_MANY_FILES = 2**16
_MORE_MEMORY = (
    "enlarge /dev/shm (docker run --shm-size), or lower num_workers, prefetch_factor or batch_size"
)
_LONGEST_SOCKET_FOLDER = 70  # bytes: a socket's path has 103 on macOS, of which 32 follow


def image_loader(
    dataset: Any,
    batch_size: int,
    workers: int,
    prefetch_factor: int,
    **options: Any,
) -> "LazyDataLoader":
    """Makes a loader of the batches that a dataset serves, whose workers persist between epochs."""
    if workers:
        _allow_open_files()
    return LazyDataLoader(
        cast(Any, dataset),
        batch_size=batch_size,
        num_workers=workers,
        collate_fn=share_batch,
        prefetch_factor=prefetch_factor if workers else None,
        persistent_workers=workers > 0,
        worker_init_fn=_leave_signals_to_the_run,
        multiprocessing_context=_worker_context() if workers else None,
        **options,
    )


def _worker_context() -> Any:
    """Returns Python's context of processes, with queues that lose no batch."""
    _use_short_socket_paths()
    context: Any = copy.copy(multiprocessing.get_context())
    context.Queue = partial(BatchQueue, ctx=context)
    return context


def _use_short_socket_paths() -> None:
    """Puts the sockets by which workers send tensors below /tmp if TMPDIR is too long for them.

    Workers inherit the folder that multiprocessing makes for them in this process.
    """
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_SOCKET_FOLDER:
        folder, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            multiprocessing.util.get_temp_dir()
        finally:
            tempfile.tempdir = folder


def _allow_open_files() -> None:
    """Raises the limit on open files, as each batch of a worker needs a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has another limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def share_batch(batch: Any) -> Any:
    """Passes on a dataset's batch; in a worker, moves it to shared memory.

    torch would do that later, in a thread that loses the batch where there is no room; the run
    would wait forever.
    """
    if get_worker_info() is not None:
        try:
            for part in batch:
                if isinstance(part, Tensor):
                    part.share_memory_()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise LocalError(f"no shared memory for a batch ({error}); {_MORE_MEMORY}") from error
    return batch


class LazyDataLoader(DataLoader[Any], ResumableLoader):
    """A ``DataLoader`` that starts its workers and sampler with the first batch.

    Lightning calls ``iter`` before it knows the epoch, and workers fetch ahead at once: a resumed
    run would see the wrong samples. ``before_batch`` is called with the number of each batch before
    the loader yields it.
    """

    before_batch: Callable[[int], None] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator is all that a ``for`` needs
        if self.num_workers:
            atexit.unregister(_end_workers)  # once, not for each epoch
            atexit.register(_end_workers)
        try:
            for number, batch in enumerate(super().__iter__()):
                if self.before_batch is not None:
                    self.before_batch(number)
                yield batch
        except (EOFError, ConnectionError) as error:  # it died while it sent a batch
            raise LocalError(WORKER_DIED) from error


def _leave_signals_to_the_run(_worker: int) -> None:
    """Ignores the run's stop signals in a worker: the run finishes its step first."""
    for number in StopRequest.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = _unless_the_run_has_ended


def _unless_the_run_has_ended(
    kind: type[BaseException], error: BaseException, place: TracebackType | None
) -> None:
    """Prints an error of the thread that sends batches, unless the run has ended."""
    if not issubclass(kind, EOFError | ConnectionError):
        sys.__excepthook__(kind, error, place)


def _end_workers() -> None:
    """Kills workers that an error has left, as they ignore the signal that Python sends."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
