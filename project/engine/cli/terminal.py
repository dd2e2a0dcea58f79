"""Standard streams of a command: output that a closed pipe or a full disk cannot break."""

import gc
import io
import os
import sys
from typing import Any, TextIO


class LastingFile(io.FileIO):
    """A file descriptor that accepts output even if nobody reads it any more: training does not end with ``| head``.

    Messages on a full disk are lost; a result that cannot be written raises one error, and its rest is discarded.
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


def lasting(stream: Any, messages: bool = False) -> TextIO:
    """Wraps standard output or standard error so that no closed pipe and no character outside its encoding breaks it."""
    buffer = io.BufferedWriter(LastingFile(stream.fileno(), messages))
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=messages or stream.isatty())


def begin_command() -> None:
    """Prepares a command's process once its modules are imported: streams that last, and less garbage to look through."""
    gc.freeze()  # what was imported stays, so that the collector need not look at it again
    gc.enable()
    if sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:  # unless a test or a notebook has replaced them
        sys.stdout, sys.stderr = lasting(sys.stdout), lasting(sys.stderr, messages=True)
