"""Entry point of every command: one-line errors, tracebacks for bugs.

It imports neither torch nor Lightning, so that a command can print its help before they are needed.
"""

import atexit
import errno
import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import NoReturn

from ..exact._errors import (
    WORKER_DIED,
    LocalError,
    UserError,
    is_first_on_machine,
    note,
    printable,
)
from ..images._quiet import quiet_libraries

TRACEBACK = "LIGHTKEEPER_TRACEBACK"
"""The variable that shows the traceback of user errors, too."""

NO_MEMORY = "out of memory; a smaller batch_size or image_size needs less"
_FEWER = "raise the limit (ulimit -n, ulimit -u), or use fewer workers (num_workers)"
NO_FILES = f"too many open files; {_FEWER}"
PEER_ENDED = "another process of this run has ended; it says why, unless the system killed it"
PEER_LATE = "another process of this run has not answered in time; if it has ended, it says why"
OF_MACHINE = (WORKER_DIED, NO_FILES, NO_MEMORY, PEER_ENDED, PEER_LATE)
"""Descriptions of errors that come of the machine, in any process."""
_KNOWN = {
    "DefaultCPUAllocator: ": NO_MEMORY,
    "Too many open files. Comm": NO_FILES,  # torch hides the system's error
    "is killed by signal: Killed": WORKER_DIED,  # one that aborts has a bug
    ") exited unexpectedly": WORKER_DIED,
    "closed by peer": PEER_ENDED,
    "reset by peer": PEER_ENDED,
    "ms, keys: /": PEER_LATE,  # of torch's store, as processes meet
    "ms for recv operation": PEER_LATE,  # of gloo
    "Early stopping conditioned on metric": "",
    "`val_check_interval` (": "",
    "more than 1 value per channel when training": (
        "BatchNorm cannot train on one value per channel; use a larger batch_size or image_size"
    ),
}
"""Words of errors about the machine or the options that have no type of their own, and advice.

Without advice, they are clear themselves.
"""

_SYSTEM = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS), "; make room, or write elsewhere"
    ),
    **dict.fromkeys(
        (
            *(errno.EACCES, errno.EPERM, errno.EPIPE, errno.EIO, errno.ESTALE),
            *(errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR),
        ),
        "",
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.EAGAIN), f"; {_FEWER}"),
}
"""Errors of the system, by their number, and advice.

Without advice, they are clear themselves.
"""

_LIST_LEAKS = ("onnx", "triton")  # by nanobind


def run_command(command: Callable[[], object]) -> NoReturn:
    """Runs a command as a program, which ends with the code that the function returns, or 0.

    A :class:`UserError` and errors of the machine, such as a full disk, are one line and code 2;
    a bug keeps its traceback.

    Example:
        >>> def main() -> None:
        ...     run_command(lambda: print("done"))
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as commands set it while they import
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.excepthook = _end_of_thread
    with one_line_errors():
        sys.exit(command())  # type: ignore[arg-type]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Ends the program with one line and code 2 for a user error; a bug keeps its traceback."""
    _open_closed_streams()
    quiet_libraries()
    gc.freeze()  # imported modules stay: the collector need not look at them again
    atexit.register(_unfreeze)
    gc.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not a notebook's
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    if (encoding := sys.getfilesystemencoding()) != "utf-8":
        note(f"names of files are read as {encoding}, by the locale: set PYTHONUTF8=1 for UTF-8")
    try:
        yield
    except KeyboardInterrupt:
        note("\nstopped")
        sys.exit(130)
    except SystemExit as end:
        if type(end) is SystemExit and isinstance(end.__context__, KeyboardInterrupt):
            note("\nstopped")  # Lightning has ended by code 1
            sys.exit(130)
        raise
    except Exception as error:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except RuntimeError:  # torch's handler, for a worker whose pipe broke before its signal
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        text = describe_error(error)
        if text is None or os.environ.get(TRACEBACK, "0") not in ("", "0"):
            raise
        is_local = isinstance(error, LocalError | OSError) or text in OF_MACHINE
        end_with_error("; ".join([text, *getattr(error, "__notes__", [])]), is_local)


def _unfreeze() -> None:
    """Frees all before Python ends, which takes a second, if libraries list what is left as leaks."""
    if any(name in sys.modules for name in _LIST_LEAKS):
        gc.collect()  # of what came later, as long as a __del__ finds what it needs
        gc.disable()  # once is enough: Python collects at its very end in any case
        gc.unfreeze()


def _end_of_thread(ended: threading.ExceptHookArgs) -> None:
    """Says in one line what ended a thread, such as TensorBoard's on a full disk, or as a bug."""
    text = describe_error(ended.exc_value)
    if text is None:
        threading.__excepthook__(ended)
    else:
        note(f"error: {text}")


def _open_closed_streams() -> None:
    """Opens the null device in place of standard streams that whoever started Python has closed.

    Python has None for these, and a file of the run might get their number, which processes that
    are started write to.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # standard error
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, mode in {"stdin": "r", "stdout": "w", "stderr": "w"}.items():
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as Python runs


def end_with_error(text: str, is_local: bool = False) -> NoReturn:
    """Ends the program with code 2 and a line, from each machine or, if local, each process."""
    if is_first_on_machine() or is_local:
        note(f"error: {text}")
    else:  # the launcher ends all processes as soon as one has ended: wait for the first one's line
        time.sleep(5.0)
    sys.exit(2)


def describe_error(error: BaseException | None) -> str | None:
    """Describes a user error or its cause in one line; None for a bug, which gets a traceback."""
    while error is not None:
        if (text := _description(error)) is not None:
            return text
        context = None if error.__suppress_context__ else error.__context__
        # torch raises a RuntimeError while it handles that of a full disk; so may closing a file
        if not isinstance(error, OSError | RuntimeError):
            context = None
        error = error.__cause__ or (context if isinstance(context, UserError | OSError) else None)
    return None


def _description(error: BaseException) -> str | None:
    text = str(error)
    if isinstance(error, UserError):
        # torch puts a loader worker's traceback in front of its error
        cls = type(error)
        return text.rpartition(f"{cls.__module__}.{cls.__qualname__}: ")[-1].strip()
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        return None if package and package in _own_packages() else text
    if isinstance(error, OSError):
        advice = _SYSTEM.get(error.errno or 0)
        return None if advice is None else f"{text}{advice}"
    if isinstance(error, UnicodeEncodeError) and "surrogates not allowed" in text:
        name = printable(error.object[max(0, error.start - 60) : error.end + 20])
        return f"'{name}' is not UTF-8; rename the file, folder or class"
    kind = type(error).__name__  # as torch and Lightning are not imported here
    if kind in ("MemoryError", "OutOfMemoryError"):
        return NO_MEMORY
    if kind == "MisconfigurationException":
        calls = {frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)}
        return None if "log" in calls else " ".join(text.split())  # what a step logs is a bug
    is_known = isinstance(error, RuntimeError | ValueError)
    known = (advice for words, advice in _KNOWN.items() if is_known and words in text)
    return next((advice or " ".join(text.split()) for advice in known), None)


def _own_packages() -> tuple[str, str]:
    """Returns the packages of the library and of the command, where a missing module is a bug."""
    main = getattr(sys.modules["__main__"], "__package__", None) or ""
    return __name__.partition(".")[0], main.partition(".")[0]
