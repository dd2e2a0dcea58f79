"""Processes forked from one that has imported everything, which takes longer than a tiny run does.

``python -m tests.distributed.forks 2 MODULE JOB FOLDER`` runs a function of a module in two, as torchrun does.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch

from tests.distributed.processes import LAUNCHER_VARIABLES, LOOPBACK, free_port


def prepare() -> None:
    """Makes this process one to fork others from: without threads, and without a trace of a launcher."""
    torch.set_num_threads(1)
    for name in [name for name in os.environ if name.startswith(LAUNCHER_VARIABLES) or name == "WORLD_SIZE"]:
        del os.environ[name]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def launched(processes: int) -> list[dict[str, str]]:
    """The variables of each process: what torchrun sets, where there are several."""
    common = {"GLOO_SOCKET_IFNAME": LOOPBACK}
    if processes == 1:
        return [common]
    world = dict.fromkeys(["WORLD_SIZE", "LOCAL_WORLD_SIZE"], str(processes))
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "test", **world}
    common["GROUP_WORLD_SIZE"] = "1"
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"} for rank in range(processes)]


def fork(work: Callable[[], None], variables: Mapping[str, str], log: Path | None = None) -> ForkProcess:
    """Starts a process with further environment variables that does some work, and writes to ``log``."""

    def life() -> None:
        os.setpgid(0, 0)
        if log is not None:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
        os.environ.update(variables)
        work()

    process = get_context("fork").Process(target=life)
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


def main() -> None:
    """Runs the job and ends as it did."""
    processes, module, name, folder = sys.argv[1:]
    job = getattr(import_module(module), name)
    prepare()
    forks = [fork(lambda: job(Path(folder)), variables) for variables in launched(int(processes))]
    sys.exit(max(abs(code or 0) for code in wait(forks)))


if __name__ == "__main__":
    main()
