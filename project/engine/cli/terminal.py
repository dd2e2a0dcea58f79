"""What a command does before it imports torch: output that cannot fail, and a quiet end by Ctrl-C meanwhile."""

import gc
import io
import os
import signal
import sys
from types import FrameType
from typing import Any, TextIO


class LastingFile(io.FileIO):
    """A file descriptor that takes what is written even where nobody reads it any more, or there is no room for it.

    Training for hours is not to end because ``| head`` has seen enough, or as its log has filled a disk that nothing else
    is on. A result that cannot be written is an error, but one only: what is left of it is thrown away.

    Args:
        descriptor: It stays open.
        messages: Whether what is written are messages alone, of which some may be lost.
    """

    def __init__(self, descriptor: int, messages: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._messages = messages

    def write(self, data: Any, /) -> int:
        """Writes, or throws away.

        Raises:
            OSError: A result cannot be written though somebody waits for it.
        """
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
    """A stream to the same place that neither a closed pipe nor a character that its encoding lacks can break.

    Args:
        stream: Standard output or standard error.
        messages: Whether it is for messages: a line is written as soon as it ends, as it is on a terminal, and is lost
            where the disk is full.
    """
    buffer = io.BufferedWriter(LastingFile(stream.fileno(), messages))
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=messages or stream.isatty())


def _open_closed_streams() -> None:
    """Opens /dev/null where a shell has closed a standard stream, as by ``>&-``.

    The next file would take its number, a checkpoint, say, and with it what libraries print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False))  # noqa: SIM115  # it lasts


def begin_command() -> None:
    """Prepares the process for a command, before it imports what takes seconds.

    Ends it with one line where its working directory is not there any more, from which imports, too, would be tried.
    """
    gc.disable()  # imports make a million objects, and looking for garbage among them takes a tenth of their time
    signal.signal(signal.SIGINT, _end)
    _open_closed_streams()
    sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr, messages=True)
    try:
        os.getcwd()
    except FileNotFoundError:
        sys.stderr.write("error: the working directory has been removed; change to one that exists\n")
        sys.exit(2)


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
