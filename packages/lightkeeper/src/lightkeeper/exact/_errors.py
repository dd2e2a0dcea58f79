"""Errors that a user can fix, notes, and how they are worded."""

import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress

LINES = "\n"
_LONGEST_LINE = 2000  # characters, more than those of a long path and its message
WORKER_DIED = (
    "a process that loads data has died, perhaps because memory ran out; fewer workers"
    " (num_workers) or a smaller batch_size need less"
)
ROOM_FOR_WORKERS = (
    "enlarge /dev/shm (docker run --shm-size), raise the limit of open files (ulimit -n), shorten"
    " TMPDIR, or set num_workers to 0"
)


class UserError(Exception):
    """A user error: its message, which commands print alone, says what is wrong and where.

    Args:
        message: What is wrong, and what to do.
        option: The argument that is wrong; a command has its own name for it, as ``--data.root``.
    """

    def __init__(self, message: str, option: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.option = option

    def __str__(self) -> str:
        return self.message if self.option is None else f"{self.option}: {self.message}"


class LocalError(UserError):
    """A UserError that one process may notice alone, so that each process prints its own."""


class NonFiniteError(LocalError):
    """A gradient, weight or loss is not finite; resuming would fail the same way."""


class UnreadableFileError(LocalError):
    """A file cannot be read."""


def printable(text: object, keep: str = "") -> str:
    """Escapes characters that control a terminal, such as ANSI codes, except ``keep``.

    Long lines, as of a name in a file from elsewhere, lose their middle.
    """
    escaped = "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode()
        for c in str(text)
    )
    return "\n".join(map(_shortened, escaped.split("\n")))


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    part = _LONGEST_LINE // 2
    return f"{line[:part]} [{len(line) - 2 * part:,} characters] {line[-part:]}"


def note(text: str) -> None:
    """Prints a line about the work to standard error; standard output is for results."""
    try:
        print(printable(text, keep=LINES), file=sys.stderr, flush=True)
    except OSError:  # work goes on if nobody reads, or the disk of a log is full
        _drop_unwritten()


def _drop_unwritten() -> None:
    """Gives standard error no buffer: what is left in one would make the exit code 120."""
    if type(sys.stderr) is not io.TextIOWrapper:  # of a notebook or a tee
        return
    with suppress(OSError):
        unbuffered = io.FileIO(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(unbuffered, errors="backslashreplace", write_through=True)


def listed(names: Iterable[object], most: int | None = None, word: str = "and") -> str:
    """Joins names as in ``a, b and c``, or beyond ``most`` as in ``a, b and 5 more``."""
    shown = [printable(name) for name in names]
    if most is not None and len(shown) > most:
        shown[most:] = [f"{len(shown) - most:,} more"]
    *first, last = shown or ["none"]
    return f"{', '.join(first)} {word} {last}" if first else last


def first_sentence(error: BaseException) -> str:
    """Returns the first sentence of a library's error, or its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]


def is_first_on_machine() -> bool:
    """Returns True for local rank 0, even before processes can communicate."""
    # Lightning's launcher and torchrun set LOCAL_RANK, with a port; srun sets SLURM_LOCALID
    local_rank = os.environ.get("LOCAL_RANK") if "MASTER_PORT" in os.environ else None
    return (local_rank or os.environ.get("SLURM_LOCALID") or "0") == "0"


def require(condition: bool, option: str, value: object, wanted: str) -> None:
    """Raises a UserError, "OPTION: must be WANTED, got VALUE", unless the condition holds."""
    if not condition:
        raise UserError(f"must be {wanted}, got {value}", option)
