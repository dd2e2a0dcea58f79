"""Real processes for tests: started with a time limit, and never left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LAUNCHER_VARIABLES = ("SLURM_", "TORCHELASTIC_", "PL_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "NODE_RANK", "RANK")
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without a trace of a launcher, for one thread, the CPU and the loopback device."""
    launchers = (*LAUNCHER_VARIABLES, "WORLD_SIZE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": LOOPBACK}
    return {**clean, **own, **extra}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def torchrun(processes: int, module: str, *args: str) -> list[str]:
    options = ["--nproc-per-node", str(processes), "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", module, *args]


def named(job: Callable[..., Any], folder: Path) -> list[str]:
    """The arguments by which ``job.py`` and ``forks.py`` find a function of a test and give it a folder."""
    return [job.__module__, job.__name__, str(folder)]


def forked(processes: int, job: Callable[..., Any], folder: Path) -> list[str]:
    """Runs a function of a test in processes forked from one that has imported everything."""
    return [sys.executable, "-m", "tests.distributed.forks", str(processes), *named(job, folder)]


def run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], cwd: Path, timeout: float = 120
) -> list[Finished]:
    """Runs commands, each with further environment variables, side by side to their ends.

    Fails the test, with all that they wrote, where one takes longer than ``timeout`` seconds.
    """
    logs = [(f".{number}.out", f".{number}.err") for number in range(len(commands))]
    with contextlib.ExitStack() as stack:
        pairs = zip(commands, logs, strict=True)
        processes = [stack.enter_context(started(command, cwd, *log, **extra)) for (command, extra), log in pairs]
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(timeout)
        late = any(process.poll() is None for process in processes)
    outputs = [[(cwd / name).read_text() for name in log] for log in logs]
    finished = [Finished(process.returncode, *texts) for process, texts in zip(processes, outputs, strict=True)]
    if late:
        pytest.fail(f"not finished after {timeout:.0f} s\n" + "\n".join(map(str, finished)))
    return finished


def run(command: Sequence[str], cwd: Path, timeout: float = 120, **extra: str) -> Finished:
    (finished,) = run_together([(command, extra)], cwd, timeout)
    return finished


def succeed(command: Sequence[str], cwd: Path, timeout: float = 120, **extra: str) -> Finished:
    finished = run(command, cwd, timeout, **extra)
    assert finished.code == 0, str(finished)
    return finished


@contextlib.contextmanager
def started(
    command: Sequence[str], place: Path, out: str = "log", err: str | None = None, **extra: str
) -> Iterator[subprocess.Popen[Any]]:
    """A command that runs in a process group of its own, writes to files, and is not left behind, nor what it starts."""
    with open(place / out, "w") as stdout, open(place / (err or os.devnull), "w") as stderr:
        options: Any = {"env": environment(**extra), "stdout": stdout, "stderr": stderr if err else stdout}
        process = subprocess.Popen(command, cwd=place, start_new_session=True, **options)
        try:
            yield process
        finally:
            end(process)


def wait_until(condition, place, patience=120.0):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {patience:.0f} s\n{(place / 'log').read_text()}")
        time.sleep(0.01)


def end(process: subprocess.Popen[Any]) -> None:
    """Kills a process group, and the groups that torchrun gave its workers."""
    for group in {process.pid, *(descendants(process.pid) if process.poll() is None else ())}:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        yield int(child)
        yield from descendants(int(child))
