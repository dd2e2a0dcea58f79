"""Signals only leave a note, Ctrl-C twice ends a run at once, and its processes on one machine end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from project.engine.run.processes import StopRequest, _end_processes

PARENT = """
import os, subprocess, sys
from types import SimpleNamespace
from project.engine.run.processes import watch_processes
environment = SimpleNamespace(creates_processes_externally=False)
watch_processes(SimpleNamespace(procs=[], num_nodes=1, cluster_environment=environment))
child = "import time; from project.engine.run.processes import watch_processes as watch"
child += "; watch(None); print('ready', flush=True); time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child], env={**os.environ, "LOCAL_RANK": "1"})
print(process.pid, flush=True)
process.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no process of its parent's death")
def test_where_the_first_process_is_killed_the_others_die(tmp_path):
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.stdout.readline() == "ready\n"
        process.kill()
    deadline = time.monotonic() + 15
    while (stat := Path(f"/proc/{child}/stat")).exists() and stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_first_process_leaves_none_behind(monkeypatch):
    monkeypatch.setattr("project.engine.run.processes._PATIENCE", 0.1)
    processes = [subprocess.Popen(["sh", "-c", script]) for script in ("exit 0", "exec sleep 600")]
    _end_processes(SimpleNamespace(procs=processes))
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL]


@pytest.mark.parametrize("number", StopRequest.SIGNALS)
def test_a_signal_is_noted_and_afterwards_does_what_it_did_before(number):
    before, request = [signal.getsignal(one) for one in StopRequest.SIGNALS], StopRequest()
    request.listen()
    assert not request.made
    os.kill(os.getpid(), number)
    assert request.made
    for _ in range(2):
        request.ignore()
        assert [signal.getsignal(one) for one in StopRequest.SIGNALS] == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the child does nothing that needs a thread
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_process_that_was_asked_to_stop_before(first):
    child = os.fork()
    if child == 0:
        try:
            StopRequest().listen()
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGINT
