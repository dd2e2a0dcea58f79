"""Processes that Lightning starts for a run, which end within seconds when one of them dies."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

from .progress import note

_FIRST_PID = "LOCAL_RANK_0_PID"  # in the environment of what the first process starts
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_PATIENCE = 5.0  # seconds for a process to end by itself


def watch_processes(launcher: Any) -> None:
    """Has the system end the processes that Lightning started when the first one dies; Lightning's observer does the rest.

    Otherwise they would wait in a collective until the backend's time limit. torchrun and srun watch their own.
    """
    if (first := os.environ.get(_FIRST_PID)) and int(os.environ.get("LOCAL_RANK", 0)) > 0:
        _die_with(int(first))
    elif hasattr(launcher, "procs") and not launcher.cluster_environment.creates_processes_externally:
        os.environ[_FIRST_PID] = str(os.getpid())
        atexit.register(_end_processes, launcher)
    environment = getattr(launcher, "cluster_environment", None)
    if environment is not None and launcher.num_nodes > 1 and environment.local_rank() == 0:
        place = f"{environment.main_address}:{environment.main_port}"
        note(f"node {environment.node_rank()}: waiting for all {launcher.num_nodes} nodes to meet at {place}")


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has died before
            os._exit(2)


def _end_processes(launcher: Any) -> None:
    """Ends what Lightning has started and forgets where the first process fails: on GPUs they would wait for it."""
    for process in launcher.procs:
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
