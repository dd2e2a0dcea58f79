"""The processes of a run on one machine end together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from project.engine.run.processes import _end_processes, watch_processes

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


def launcher(**environment: Any) -> Any:
    given = {"creates_processes_externally": True, "local_rank": lambda: 0, "node_rank": lambda: 1}
    place = {"main_address": "10.0.0.1", "main_port": 1234}
    return SimpleNamespace(procs=[], num_nodes=2, cluster_environment=SimpleNamespace(**given, **place, **environment))


def test_several_nodes_say_what_they_wait_for(capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    watch_processes(launcher())
    assert capsys.readouterr().err == "node 1: waiting for all 2 nodes to meet at 10.0.0.1:1234\n"
    assert "LOCAL_RANK_0_PID" not in os.environ  # what torchrun has started is torchrun's to watch


def test_the_first_process_leaves_none_behind(monkeypatch):
    monkeypatch.setattr("project.engine.run.processes._PATIENCE", 0.1)
    processes = [subprocess.Popen(["sh", "-c", script]) for script in ("exit 0", "exec sleep 600")]
    _end_processes(SimpleNamespace(procs=processes))
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL]
