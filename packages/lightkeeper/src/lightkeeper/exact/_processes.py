"""A run's processes: the signals that stop them, and an end for all when the first one dies."""

import ctypes
import os
import signal
import sys
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, try again
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


class StopRequest:
    """Sets ``made`` when the system or the user wants the run to stop; training looks here.

    Lightning's own handlers, which the commands switch off, save and talk to other processes in the
    middle of whatever the signal interrupted, and hang now and then.

    Args:
        further: Signals beside ``SIGNALS`` that count, too.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, *further: signal.Signals) -> None:
        self.made = False
        self._signals = (*self.SIGNALS, *further)
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Handles the signals from here on, in the main thread."""
        self._before = {
            number: signal.signal(number, self._handle)
            for number in self._signals
            if current_thread() is main_thread()  # Python lets no other handle signals
        }

    def release(self) -> None:
        """Restores the handlers that the signals had before ``listen``."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:  # a second Ctrl-C exits at once
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.made = True


def end_with_first(trainer: "Trainer") -> None:
    """Has Linux end this process when the first one ends, if that has started it.

    Otherwise it would wait in a collective until the backend's time limit. Scripts call this when
    processes can communicate, commands ``watch_processes`` before.
    """
    first = trainer.strategy.broadcast(os.getpid())
    if trainer.local_rank > 0 and os.getppid() == first:
        end_with_parent(first, signal.SIGKILL)


def end_with_parent(parent: int, number: int) -> None:
    """Has Linux send this process a signal when its parent ends, and ends it if that has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(2)
