"""When a process of a run dies, those that are left end, and one line says what happened."""

import os
import subprocess
import sys

import pytest
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only

from project.engine.cli.command import one_line_errors
from project.engine.run.processes import FIRST_PID, ProcessWatch, watch_processes

KILLED, FAILED, DONE = "kill -KILL $$", "exit 3", "exit 0"


def watched(children: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[int], str]:
    """The codes that the first process ends with, and what it says, after what its children do."""
    codes: list[int] = []
    processes = [subprocess.Popen(["sh", "-c", script]) for script in children]
    watch = ProcessWatch(lambda: "do it again", leave=codes.append)
    watch.watch_children(processes)
    if not any(script in (KILLED, FAILED) for script in children):
        for process in processes:
            process.wait()
        watch.stop()
    if processes:
        watch.join(60)
    assert not watch.is_alive()
    assert all(process.wait(60) is not None for process in processes)  # none is left
    return codes, capsys.readouterr().err


def test_a_death_is_told_with_what_to_do(capsys):
    codes, said = watched(["sleep 600", KILLED], capsys)
    assert codes == [2]
    assert said == "error: process 2 of this run was ended by signal 9, Killed (out of memory?); do it again\n"


def test_a_process_that_failed_has_spoken_for_itself(capsys, monkeypatch):
    monkeypatch.setattr("project.engine.run.processes._PATIENCE", 0.1)
    assert watched([FAILED, "sleep 600"], capsys) == ([3], "")


def test_a_normal_end_is_none_of_its_business(capsys):
    assert watched([DONE, DONE], capsys) == ([], "")


def test_a_process_that_has_started_no_other_watches_nothing(capsys):
    assert watched([], capsys) == ([], "")


def test_what_torchrun_has_started_is_no_child_of_the_first_process(monkeypatch):
    # a second command in the same process would take itself for an orphan, and end
    monkeypatch.setenv(FIRST_PID, "")
    monkeypatch.delenv(FIRST_PID)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_zero_only, "rank", 0)  # which the trainer changes for good
    environment = TorchElasticEnvironment()
    trainer = Trainer(accelerator="cpu", devices=2, plugins=[environment], logger=False, enable_checkpointing=False)
    watch_processes(trainer.strategy.launcher, lambda: "do it again")
    assert FIRST_PID not in os.environ


@pytest.mark.parametrize("rank", [1, 2])
def test_of_those_that_lost_the_first_process_one_says_so(rank, capsys, monkeypatch):
    monkeypatch.setenv(FIRST_PID, "1" if os.getppid() != 1 else "2")  # not the parent, as when that has died
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    codes: list[int] = []
    watch = ProcessWatch(lambda: "do it again", leave=codes.append)
    watch.start()
    watch.join(60)
    assert codes == [2]
    line = "error: the first process of this run was killed (out of memory?); do it again\n"
    assert capsys.readouterr().err == (line if rank == 1 else "")


def test_a_lost_connection_leaves_the_word_to_the_watch(capsys):
    def leave(code: int) -> None:
        assert code == 2
        sys.stderr.write("the end\n")

    def lose_connection() -> None:
        ProcessWatch(lambda: "do it again", leave).watch_children([subprocess.Popen(["sh", "-c", KILLED])])
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")

    with pytest.raises(SystemExit), one_line_errors():
        lose_connection()
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("error: process 1 of this run was ended by signal 9")
    assert second == "the end"
