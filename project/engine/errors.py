"""What is written for the person at the terminal when something that they gave is wrong."""

import os
import sys
import time
from collections.abc import Iterable
from typing import NoReturn

LINES = "\n"


class UserError(Exception):
    """Something the user gave is wrong; the text says what, where and what to do, and commands print it alone."""


class LocalError(UserError):
    """What one process may find out alone, so that it must say it itself."""


class UnreadableFileError(LocalError):
    """A file cannot be read."""


def printable(text: object, keep: str = "") -> str:
    """A text with escapes in place of what would control a terminal: ANSI codes, line ends, changed writing directions.

    Args:
        text: As a path or a class name, which may come from anywhere.
        keep: Control characters that shall stay.
    """
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in str(text))


def listed(names: Iterable[object], most: int | None = None, word: str = "and") -> str:
    """Joins names as in ``a, b and c``, or as in ``a, b and 5 more``, fit to print.

    Args:
        names: As :func:`printable` takes them.
        most: How many to show; by default all.
        word: What comes before the last.

    Returns:
        The text; ``none`` where there are no names.
    """
    shown = [printable(name) for name in names]
    if most is not None and len(shown) > most:
        shown[most:] = [f"{len(shown) - most:,} more"]
    *first, last = shown or ["none"]
    return f"{', '.join(first)} {word} {last}" if first else last


def first_sentence(error: BaseException) -> str:
    """What an error of a library says first, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]


def end_with_error(text: str, alone: bool = False) -> NoReturn:
    """Ends the program with one line and code 2; of several processes on a machine, only the first says it.

    Args:
        text: What is wrong.
        alone: Whether the other processes may not have noticed, so that this one must say it.
    """
    # Lightning's launcher and torchrun set the one, srun the other
    rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    if rank == "0" or not rank.isdecimal() or alone:
        sys.stderr.write(f"error: {printable(text, keep=LINES)}\n")
    else:
        _let_the_first_speak()
    sys.exit(2)


def _let_the_first_speak(patience: float = 5.0) -> None:
    """Waits, as launchers end all processes, the first too, as soon as one has ended."""
    parent, end = os.getppid(), time.monotonic() + patience
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.1)


def require(condition: bool, option: str, value: object, wanted: str) -> None:
    """Refuses the value of an option.

    Args:
        condition: Whether the value is acceptable.
        option: The option as it is typed.
        value: What was given.
        wanted: What it must be.

    Raises:
        UserError: It is not.
    """
    if not condition:
        raise UserError(f"{option} must be {wanted}, got {value}")
