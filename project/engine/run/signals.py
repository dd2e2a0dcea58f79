"""Signals that ask a run to stop."""

import os
import signal
import threading
from types import FrameType
from typing import Any

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong, try again


class StopRequest:
    """Sets ``made`` when the system or the user wants the run to stop; the trainer looks here between two steps.

    Lightning's own handlers, which the commands switch off, save and talk to other processes in the middle of whatever
    the signal interrupted, and hang now and then.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self) -> None:
        self.made = False
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Takes the signals over."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}

    def ignore(self) -> None:
        """Hands the signals back to whoever handled them before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:  # who presses Ctrl-C twice does not want to wait
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.made = True
