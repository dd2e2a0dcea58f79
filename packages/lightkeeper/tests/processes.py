"""Real processes for tests: started with a time limit, and never left behind.

``python -m tests.processes 2 MODULE JOB FOLDER`` runs a function of a module in two, as torchrun does, but
forked from one that has imported everything, which takes longer than a tiny run does. 1 is this process itself.
"""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LOOPBACK = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


class Finished(NamedTuple):
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without a trace of a launcher, for one thread, the CPU and the loopback device."""
    launchers = "SLURM_ TORCHELASTIC_ PL_ MASTER_ LOCAL_ GROUP_ ROLE_ NODE_RANK RANK WORLD_SIZE"
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(tuple(launchers.split()))
    }
    own = {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": LOOPBACK,
    }
    return {**clean, **own, **extra}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def torchrun(processes: int, module: str, *args: str) -> list[str]:
    options = ["--nproc-per-node", str(processes), "--master-port", str(free_port())]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", module, *args]


def forked(processes: int, job: Callable[..., Any], folder: Path) -> list[str]:
    """Runs a function of a test, which it gives a folder, in so many processes."""
    return [
        sys.executable,
        "-m",
        __name__,
        str(processes),
        job.__module__,
        job.__name__,
        str(folder),
    ]


def run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], cwd: Path, timeout: float = 120
) -> list[Finished]:
    """Runs commands, each with further environment variables, side by side to their ends.

    Fails the test, with all that they wrote, where one takes longer than ``timeout`` seconds.
    """
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(started(command, cwd, f".{number}.out", f".{number}.err", **extra))
            for number, (command, extra) in enumerate(commands)
        ]
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in processes:
                process.wait(timeout)
        late = any(process.poll() is None for process in processes)
    finished = [
        Finished(
            process.returncode,
            (cwd / f".{number}.out").read_text(),
            (cwd / f".{number}.err").read_text(),
        )
        for number, process in enumerate(processes)
    ]
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
        options: Any = {
            "env": environment(**extra),
            "stdout": stdout,
            "stderr": stderr if err else stdout,
        }
        process = subprocess.Popen(command, cwd=place, start_new_session=True, **options)
        try:
            yield process
        finally:  # torchrun gives its workers groups of their own
            for group in {
                process.pid,
                *(descendants(process.pid) if process.poll() is None else ()),
            }:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            process.wait()


def wait_until(condition, place, patience=120.0):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {patience:.0f} s\n{(place / 'log').read_text()}")
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """False for a process that has ended, whether or not its parent has noticed."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    for child in children.read_text().split() if children.exists() else ():
        yield int(child)
        yield from descendants(int(child))


def launched(processes: int) -> list[dict[str, str]]:
    """The variables of each process: what torchrun sets, where there are several."""
    if processes == 1:
        return [{}]
    common = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": "test",
    }
    return [
        {**common, "RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": "0"}
        for rank in map(str, range(processes))
    ]


def fork(
    work: Callable[[], Any], variables: Mapping[str, str], log: Path | None = None
) -> ForkProcess:
    """Starts a process with further environment variables that does some work, and writes to ``log``."""

    def life() -> None:
        os.setpgid(0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
        os.environ.update(variables)
        work()

    process = get_context("fork").Process(target=life)
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # the child needs no thread of this one
        process.start()
    return process


def wait(processes: list[ForkProcess], patience: float = 5.0) -> list[int | None]:
    """The exit codes; like every launcher, it ends the other processes some time after one has failed."""
    end = math.inf
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + patience)
        for process in processes if time.monotonic() > end else ():
            process.kill()
        time.sleep(0.01)
    return [process.exitcode for process in processes]


if __name__ == "__main__":
    number, module, name, place = sys.argv[1:]
    work = partial(getattr(import_module(module), name), Path(place))
    if number == "1":
        work()
    else:
        sys.exit(
            max(
                abs(code or 0)
                for code in wait([fork(work, each) for each in launched(int(number))])
            )
        )
