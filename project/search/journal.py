"""The file to which the processes of a sweep append what their trials come to."""

import fcntl
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend


class Journal(JournalFileBackend):
    """Optuna's journal, but what a full disk left of a line is removed before the next line is added.

    Optuna would append to it, and could read neither line again.

    Args:
        path: The file, which is made where it is missing.
        lock: A file to lock while a line is added.
    """

    def __init__(self, path: Path, lock: Path) -> None:
        super().__init__(str(path))
        self._path, self._added_under = path, lock

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds lines."""
        descriptor = locked(self._added_under, wait=True)
        assert descriptor is not None
        try:
            _remove_partial_line(self._path)
            super().append_logs(logs)
        finally:
            os.close(descriptor)


def locked(path: Path, wait: bool = False) -> int | None:
    """Takes a lock, which lasts until its file descriptor is closed, or with it all processes that have it end.

    Returns:
        The file descriptor; None where another has the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_partial_line(path: Path) -> None:
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        if end and file.read(1) != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
