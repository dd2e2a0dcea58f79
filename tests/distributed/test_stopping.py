"""Runs that lose a process or a machine, or are asked to stop: all end together, and what goes on takes the same batches."""

import contextlib
import os
import re
import select
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from project.engine.errors import UserError
from project.engine.run.processes import StopRequest, watch_processes
from project.fit import FitCLI
from tests.conftest import cases
from tests.distributed.job import CALLBACK, TINY
from tests.distributed.processes import (
    descendants,
    fork,
    free_port,
    run,
    started,
    succeed,
    torchrun,
    wait,
    wait_until,
)
from tests.engine.toy import differences, outcome
from tests.small import load

FLAGS = ["project.fit", *TINY, "--name=run", "--callbacks.last_checkpoint.every_n_steps=1"]
RECORDING = [*FLAGS, "--data.batch_size=12", "--trainer.max_epochs=2", f"{CALLBACK}RecordsBatches"]
PYTHON, TORCHRUN = [sys.executable, "-m"], [sys.executable, "-m", "torch.distributed.run"]
LAST = Path("runs/run/checkpoints/last.ckpt")
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""In torchrun's shared store, a machine that joins waits in vain for the address of the first process."""


def members(group: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgrp = stat.read_text().rsplit(")", 1)[1].split()[:3]
            found += [int(stat.parent.name)] if int(pgrp) == group and state not in "ZX" else []
    return found


def test_processes_that_are_started_again_need_a_name(workplace, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(UserError, match="--max-restarts needs a --name") as caught:
        FitCLI(TINY)
    assert "\n" not in str(caught.value)
    assert list(workplace.iterdir()) == []
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    FitCLI(TINY)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_signal_to_the_first_process_stops_all_and_is_answered(tmp_path, devices):
    with started(
        [*PYTHON, *FLAGS, "--trainer.max_epochs=200", f"--trainer.devices={devices}"], tmp_path
    ) as process:
        wait_until(lambda: (tmp_path / LAST).exists() or process.poll() is not None, tmp_path)
        assert len(members(process.pid)) == devices
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, tmp_path)
        wait_until(lambda: not members(process.pid), tmp_path, patience=30)
        log = (tmp_path / "log").read_text()
        assert process.returncode == 75, log
    assert log.count("to resume, run the same command with --name run") == 1
    assert "Traceback" not in log


@pytest.mark.slow
@cases(
    "rank hook",
    (1, "on_train_batch_start"),
    (1, "on_validation_batch_start"),
    (0, "on_test_batch_start"),
)
def test_where_a_process_is_killed_the_other_ends_within_15_seconds(tmp_path, rank, hook):
    death = [
        f"{CALLBACK}Dies",
        f"--trainer.callbacks.rank={rank}",
        f"--trainer.callbacks.hook={hook}",
    ]
    command = [*PYTHON, "project.fit", *TINY, "--name=run", "--trainer.devices=2", *death]
    with started(command, tmp_path) as process:
        wait_until(
            lambda: (tmp_path / "died").exists() or process.poll() is not None,
            tmp_path,
            patience=300,
        )
        wait_until(lambda: not members(process.pid), tmp_path, patience=15)
        log = (tmp_path / "log").read_text()
        assert process.wait() != 0, log
    assert "Traceback" not in log
    assert not (tmp_path / "runs/run/metrics.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_starts_a_run_again_that_lost_a_process(tmp_path, victim):
    fit = [*FLAGS, "--trainer.devices=2", "--trainer.max_epochs=6"]
    succeed(torchrun(2, *fit, "--trainer.default_root_dir=whole"), tmp_path)
    # not with a --master-port: then what is started again meets what the killed processes left in torchrun's own store
    command = [*TORCHRUN, "--nproc-per-node=2", "--max-restarts=3", "-m", *fit]
    with started(command, tmp_path, **OWN_STORE) as process:
        wait_until(lambda: (tmp_path / LAST).exists() or process.poll() is not None, tmp_path)
        started_by = {
            pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)
        }
        workers = [pid for pid, command in started_by.items() if b"project.fit" in command]
        assert len(workers) == 2
        os.kill(workers[victim], signal.SIGKILL)
        wait_until(lambda: process.poll() is not None, tmp_path)
        log = (tmp_path / "log").read_text()
        assert process.returncode == 0, log
    assert log.count("continuing runs/run in epoch") == 1
    assert differences(outcome(tmp_path / "whole/run"), outcome(tmp_path / "runs/run")) == []


def global_batches(place: Path) -> dict[int, list[int]]:
    """The images of each step over all processes; a step that was begun twice had the same ones."""
    found: dict[tuple[int, str], list[int]] = {}
    for file in (place / "batches").iterdir():
        step, _, world_size = file.name.replace(".", " ").split(" ", 2)
        found.setdefault((int(step), world_size), []).extend(map(int, file.read_text().split()))
    steps = {step: sorted(images) for (step, _), images in found.items()}
    assert all(sorted(images) == steps[step] for (step, _), images in found.items())
    return steps


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    place = tmp_path_factory.mktemp("undisturbed")
    succeed([*PYTHON, *RECORDING], place)
    batches = global_batches(place)
    assert len(batches) == 8
    return batches


@pytest.mark.slow
def test_a_run_resumes_on_any_number_of_processes_with_the_same_batches(tmp_path, undisturbed):
    for processes, stop in ((2, 1), (1, 3), (3, 5), (2, -1)):
        finished = run(
            torchrun(processes, *RECORDING, f"--trainer.callbacks.stop={stop}"), tmp_path
        )
        assert (finished.code == 0) == (stop < 0), str(finished)
        assert finished.err.count(f"the number of processes is {processes}, not ") == (stop != 1), (
            str(finished)
        )  # another number each time
    assert global_batches(tmp_path) == undisturbed


def machine(port: int, is_first: bool) -> list[str]:
    """torchrun as on one of at most two machines, which are this one; the first is where they meet."""
    options = [
        "--nnodes=1:2",
        "--max-restarts=3",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
    ]
    options += [
        f"--rdzv-conf=is_host={is_first},last_call_timeout=5,keep_alive_interval=1",
        "--local-addr=127.0.0.1",
    ]
    return [*TORCHRUN, *options, "-m", *RECORDING, f"{CALLBACK}LosesMachine"]


@pytest.mark.slow
def test_a_machine_may_be_killed_and_another_join(tmp_path, undisturbed):
    port = free_port()
    first, other = machine(port, is_first=True), machine(port, is_first=False)
    with (
        started(first, tmp_path, **OWN_STORE) as stays,
        started(other, tmp_path, "dies", **OWN_STORE, DIES="1"),
    ):
        wait_until(
            lambda: (tmp_path / "batches/5.0 of 1").exists() or stays.poll() is not None, tmp_path
        )
        with started(other, tmp_path, "joins", **OWN_STORE) as joins:
            wait_until(lambda: None not in (stays.poll(), joins.poll()), tmp_path)
            log = "".join((tmp_path / name).read_text() for name in ("log", "joins"))
            assert (stays.returncode, joins.returncode) == (0, 0), log
    for now in ("1, not 2", "2, not 1"):
        assert f"the number of processes is {now}: order and augmentation are exact" in log
    assert global_batches(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_loss_that_is_infinite_in_one_process_stops_all_before_the_step_and_names_its_images(
    tmp_path,
):
    finished = run(
        torchrun(
            2, *FLAGS, f"{CALLBACK}RecordsBatches", "--model=tests.distributed.job.InfiniteLoss"
        ),
        tmp_path,
    )
    assert finished.code != 0
    other, bad = sorted(line for line in finished.err.splitlines() if line.startswith("error: "))
    assert "training stopped at step 3: the loss is inf in process 1, of the images" in bad
    assert re.findall(r"(\d+)'", bad) == (tmp_path / "batches" / "2.1 of 2").read_text().split()
    assert other == "error: training stopped after step 3: train/loss is not finite"
    assert "[rank" not in finished.err  # as torch begins the traceback of a process
    last = load(tmp_path / LAST)
    assert last["global_step"] == 2
    assert all(value.isfinite().all() for value in last["state_dict"].values())


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems tell no process of its parent's death"
)
def test_where_the_first_process_is_killed_the_others_die():
    reading, writing = os.pipe()

    def watch(launcher) -> None:
        watch_processes(launcher)
        os.write(writing, b"watched")
        time.sleep(30)

    def start_another() -> None:
        watch_processes(SimpleNamespace(procs=[]))
        wait([fork(lambda: watch(None), {"LOCAL_RANK": "1"})])

    first = fork(start_another, {})
    os.close(writing)
    assert os.read(reading, 7) == b"watched"
    first.kill()
    assert wait([first]) == [-signal.SIGKILL]
    ended, _, _ = select.select([reading], [], [], 15)  # as nobody is left that could write
    assert ended
    assert os.read(reading, 1) == b""
    os.close(reading)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_process_that_was_asked_to_stop_before(first):
    def interrupted() -> None:
        StopRequest().listen()
        for number in (first, signal.SIGINT):
            os.kill(os.getpid(), number)

    assert wait([fork(interrupted, {})]) == [-signal.SIGINT]
