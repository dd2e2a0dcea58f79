"""Errors of the environment in one line; everything else, above all a bug of the user's own, keeps its traceback."""

import errno
import os
import re
import traceback

import torch

from ..errors import UserError
from ..loading.workers import WORKER_DIED

LOST = "another process of this run has ended; it says why, unless the system killed it"
TOO_LARGE = "the GPU has too little memory for this; a smaller batch_size needs less"
_ROOT = (__package__ or "").partition(".")[0]
TRACEBACK = f"{_ROOT.upper()}_TRACEBACK"
"""The variable that shows tracebacks of explained errors too, named after the package."""


def explain(error: BaseException | None) -> str | None:
    """Explains an error that the user can mend, or its cause, in one line; None for a bug, which has a traceback."""
    while error is not None:
        if (text := _text_of(error)) is not None:
            return text
        context = None if error.__suppress_context__ else error.__context__
        # an error that was being handled is the cause only where writing failed again while a file was closed
        error = error.__cause__ or (context if isinstance(context, UserError | OSError) else None)
    return None


def _text_of(error: BaseException) -> str | None:
    if isinstance(error, UserError):
        # torch passes an error of a loader worker on with the worker's traceback in front of it
        return re.split(r"[\w.]+\.engine\.errors\.\w+: ", str(error))[-1].strip()
    if isinstance(error, OSError):
        name = (
            f" '{os.fsdecode(error.filename)}'" if isinstance(error.filename, str | bytes) else ""
        )
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            return f"cannot write{name}: {error.strerror}; make room"
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
            return f"{error.strerror}; raise the limit (ulimit -n, ulimit -u), or use fewer workers (num_workers)"
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"no permission{name}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != _ROOT:
        place = traceback.extract_tb(error.__traceback__)[-1:]
        where = (
            f" ({place[0].filename}, line {place[0].lineno})"
            if place and place[0].filename[0] != "<"
            else ""
        )
        return f"the package '{error.name}' is not installed{where}" if error.name else str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return TOO_LARGE
    if isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(
        error
    ):  # not one that a worker has caught
        # an abort is a bug, and has nothing to do with memory
        return (
            None if re.search("signal: (Aborted|Segmentation fault)", str(error)) else WORKER_DIED
        )
    if isinstance(error, RuntimeError) and re.search(
        "Connection (closed|reset) by peer", str(error)
    ):
        return LOST
    return None
