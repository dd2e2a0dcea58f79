"""A loader that starts its workers late, and the end and signals of these workers."""

import copy
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch.utils.data import DataLoader

from ._errors import ROOM_FOR_WORKERS, WORKER_DIED, LocalError
from ._processes import StopRequest
from ._upstream import BatchQueue


def worker_options(workers: int, start: Callable[[int], object] | None = None) -> dict[str, Any]:
    """Returns options of a loader whose workers persist, and leave signals to the run.

    ``start`` is called in each worker with its number.
    """
    if not workers:
        return {}
    return {
        "persistent_workers": True,
        "worker_init_fn": partial(_start_worker, start),
        "multiprocessing_context": worker_context(workers),
    }


def worker_context(workers: int) -> BaseContext:
    """Returns Python's context of processes, with queues that lose no batch.

    Raises:
        LocalError: There is no room for the queues of that many workers, of which torch's loader
            would tell neither where nor why.
    """
    context = copy.copy(multiprocessing.get_context())
    context.Queue = partial(BatchQueue, ctx=context)  # type: ignore[method-assign]
    context.Process = partial(_with_queues, context.Process)  # type: ignore[assignment,misc]
    try:
        # one for each, one for all, and an event, which takes as much
        for queue in [context.Queue() for _ in range(workers + 2)]:
            queue.close()
    except OSError as error:
        raise LocalError(
            f"loader workers cannot be started ({error}); {ROOM_FOR_WORKERS}"
        ) from error
    return context


def _with_queues(
    make: Callable[..., BaseProcess], args: tuple[object, ...], **options: object
) -> BaseProcess:
    """Returns a process that keeps its queues until it has ended.

    Otherwise Python, where it collects a loader as garbage, ends a queue's thread before torch's
    ``__del__`` tells the worker by it that it should end.
    """
    process = make(args=args, **options)
    process.queues = [part for part in args if isinstance(part, BatchQueue)]  # type: ignore[attr-defined]
    return process


class LazyDataLoader(DataLoader[Any]):
    """A ``DataLoader`` that starts its workers and sampler with the first batch.

    Lightning calls ``iter`` before it knows the epoch, and workers fetch ahead at once: a resumed
    run would see the wrong samples. ``before_batch`` is called with the number of each batch before
    the loader yields it.
    """

    before_batch: Callable[[int], None] | None = None
    _process = 0  # the one whose end ends the workers, too

    # a generator is all that a ``for`` needs
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.num_workers and self._process != os.getpid():
            # not by atexit, which processes of ddp_spawn and ddp_fork leave out
            Finalize(None, _end_workers, exitpriority=1)
            self._process = os.getpid()
        try:
            # it draws a seed for workers, in a resumed run of several loaders perhaps within a step
            with torch.random.fork_rng(devices=[]):
                batches = super().__iter__()
            for number, batch in enumerate(batches):
                if self.before_batch is not None:
                    self.before_batch(number)
                yield batch
        except (EOFError, ConnectionError) as error:  # it died while it sent a batch
            raise LocalError(WORKER_DIED) from error


def _start_worker(start: Callable[[int], object] | None, worker: int) -> None:
    """Ignores the run's stop signals in a worker: the run finishes its step first."""
    for number in StopRequest.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if start is not None:
        start(worker)


def _end_workers() -> None:
    """Kills workers that an error has left, as they ignore the signal that Python sends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise an error of it
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
