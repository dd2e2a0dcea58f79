"""A ``DataLoader`` that starts late, and what its workers leave to the run."""

import atexit
import multiprocessing
import signal
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ..errors import LocalError
from ..run.signals import StopRequest
from .batch import ImageBatch
from .workers import WORKER_DIED


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
        """Nothing: that there is a state tells Lightning that the loader goes on where training does."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Needs nothing: the sampler asks where training stands."""


def leave_signals_to_the_run(_worker: int) -> None:
    """A signal to the whole process group asks the run to stop after its step, for which it needs its workers."""
    for number in StopRequest.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end_workers() -> None:
    """Ends workers that an error has left; Python would ask them by a signal that they leave to the run, and wait."""
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
