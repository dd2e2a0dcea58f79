"""Real processes for tests, with a time limit, and never left behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import environment


@contextlib.contextmanager
def started(command: list[str], place: Path) -> Iterator[subprocess.Popen[Any]]:
    """A command in a process group of its own, which writes to ``log``; all of the group ends."""
    with open(place / "log", "w") as log:
        options: Any = {"env": environment(), "stdout": log, "stderr": log}
        process = subprocess.Popen(command, cwd=place, start_new_session=True, **options)
        try:
            yield process
        finally:
            for pid in [process.pid, *descendants(process.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
            process.wait()


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        yield int(child)
        yield from descendants(int(child))


def wait_until(condition: Callable[[], object], place: Path) -> None:
    """Waits two minutes at most, or fails the test with the log."""
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within two minutes\n{(place / 'log').read_text()}")
        time.sleep(0.01)
