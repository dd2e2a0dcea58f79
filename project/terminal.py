"""What a command does before it imports torch: output that cannot fail, and a quiet end by Ctrl-C meanwhile."""

import gc
import io
import os
import signal
import sys
from types import FrameType
from typing import Any, TextIO


class LastingFile(io.FileIO):
    """A file descriptor that takes what is written even where nobody reads it any more.

    Training for hours is not to end because ``| head`` has seen enough: what follows is thrown away.
    """

    def write(self, data: Any, /) -> int:
        """Writes, or throws away."""
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(memoryview(data))


def lasting(stream: TextIO, line_buffering: bool = False) -> TextIO:
    """A stream to the same place that neither a closed pipe nor a character that its encoding lacks can break.

    Args:
        stream: Standard output or standard error.
        line_buffering: Whether a line is written as soon as it ends, as it is on a terminal.
    """
    raw = LastingFile(stream.fileno(), "wb", closefd=False)
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, stream.encoding, "backslashreplace", line_buffering=line_buffering or stream.isatty()
    )


def begin_command() -> None:
    """Prepares the process for a command, before it imports what takes seconds.

    Ends it with one line where its working directory is not there any more, from which imports, too, would be tried.
    """
    gc.disable()  # imports make a million objects, and looking for garbage among them takes a tenth of their time
    signal.signal(signal.SIGINT, _end)
    if sys.stdout is not None and sys.stderr is not None:  # as they are where a shell has closed them, by >&-
        sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr, line_buffering=True)
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
