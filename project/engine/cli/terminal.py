"""Standard streams of a command: output that a closed pipe or a full disk cannot break."""

import gc
import io
import os
import sys
from typing import Any, TextIO


class LastingFile(io.FileIO):
    """A file descriptor that accepts output even if nobody reads it any more, or if the disk of a log is full.

    Hours of training must not end because ``| head`` has seen enough. Messages on a full disk are lost; a result that
    cannot be written raises one error, and the rest of it is discarded.
    """

    def __init__(self, descriptor: int, messages: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._messages = messages

    def write(self, data: Any, /) -> int:
        """Writes or discards the data; raises OSError if a result that somebody waits for cannot be written."""
        try:
            return super().write(data)
        except OSError as error:
            unread = isinstance(error, BrokenPipeError)
            if unread or not self._messages:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.fileno())
                os.close(null)
            if not (unread or self._messages):
                raise
            return len(memoryview(data))


def lasting(stream: TextIO, messages: bool = False) -> TextIO:
    """Wraps standard output or standard error so that no closed pipe and no character outside its encoding breaks it."""
    buffer = io.BufferedWriter(LastingFile(stream.fileno(), messages))
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=messages or stream.isatty())


def _open_closed_streams() -> None:
    """Opens /dev/null for each stream that a shell closed, as by ``>&-``: a checkpoint could take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115  # it lasts


def begin_command() -> None:
    """Prepares the process for a command, before it imports what takes seconds."""
    gc.disable()  # imports make a million objects, and looking for garbage among them takes a tenth of their time
    signal.signal(signal.SIGINT, _end)
    _open_closed_streams()
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr, messages=True)


def end_of_imports() -> None:
    """Gives Ctrl-C its usual meaning, and looks for garbage from now on, but not among what was imported."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()
        gc.enable()


def _end(number: int, _frame: FrameType | None) -> None:
    """Ends at once: imports turn an exception of ours into one of theirs."""
    os.write(2, b"\nstopped\n")
    os._exit(128 + number)
