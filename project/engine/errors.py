"""Errors that the user can mend, and how they are printed."""

import os
import sys
import time
from collections.abc import Iterable
from typing import NoReturn

LINES = "\n"


class UserError(Exception):
    """A mistake of the user's; its text says what is wrong, where and what to do, and commands print it alone."""


class LocalError(UserError):
    """A UserError that one process may notice alone, so that each prints its own."""


class NonFiniteError(LocalError):
    """Training has met numbers that are not finite, which resuming would meet again."""


class UnreadableFileError(LocalError):
    """A file cannot be read."""


def printable(text: object, keep: str = "") -> str:
    """Escapes what would control a terminal: ANSI codes, line ends and changed writing directions, but not ``keep``."""
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def listed(names: Iterable[object], most: int | None = None, word: str = "and") -> str:
    """Joins names as in ``a, b and c``, or with ``most`` as in ``a, b and 5 more``; without names it is ``none``."""
    shown = [printable(name) for name in names]
    if most is not None and len(shown) > most:
        shown[most:] = [f"{len(shown) - most:,} more"]
    *first, last = shown or ["none"]
    return f"{', '.join(first)} {word} {last}" if first else last


def first_sentence(error: BaseException) -> str:
    """Returns the first sentence of a library's error, or its type where it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0]


def first_of_machine() -> bool:
    """Returns False in all processes of a machine but the first, before they can communicate, too."""
    # Lightning's launcher and torchrun set the one, srun the other
    rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
    return rank == "0" or not rank.isdecimal()


def end_with_error(text: str, alone: bool = False) -> NoReturn:
    """Ends the program with code 2 and one line, which only the first process of a machine prints, or with ``alone`` each."""
    if first_of_machine() or alone:
        sys.stderr.write(f"error: {printable(text, keep=LINES)}\n")
    else:
        _let_the_first_speak()
    sys.exit(2)


def _let_the_first_speak(patience: float = 5.0) -> None:
    """Waits for the launcher's end: it ends all processes, the first too, as soon as one has ended."""
    parent, end = os.getppid(), time.monotonic() + patience
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.1)


def require(condition: bool, option: str, value: object, wanted: str) -> None:
    """Raises a UserError, "OPTION must be WANTED, got VALUE", unless the condition holds."""
    if not condition:
        raise UserError(f"{option} must be {wanted}, got {value}")
