"""Runs that lose a process, or are asked to stop: all end together, and what goes on takes the same batches."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from lightkeeper.exact import UserError
from lightkeeper.exact._processes import StopRequest

from tests.job import CALLBACK, TINY
from tests.processes import (
    fork,
    is_running,
    run,
    started,
    succeed,
    torchrun,
    wait,
    wait_until,
)
from tests.toy import ToyFit, cases, differences, outcome

FLAGS = ["tests.fit", *TINY, "--name=run", "--callbacks.last_checkpoint.every_n_steps=1"]
RECORDING = [*FLAGS, "--data.batch_size=12", "--trainer.max_epochs=2", f"{CALLBACK}RecordsBatches"]
PYTHON = [sys.executable, "-m"]


def dies(rank: int, hook: str, step: int = 0) -> list[str]:
    return [
        f"{CALLBACK}Dies",
        f"--trainer.callbacks.rank={rank}",
        f"--trainer.callbacks.hook={hook}",
        f"--trainer.callbacks.step={step}",
    ]


def members(group: int) -> list[int]:
    """The running processes of a group."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = []
    for pid in filter(is_running, pids):
        with contextlib.suppress(ProcessLookupError):
            found += [pid] if os.getpgid(pid) == group else []
    return found


def test_processes_that_are_started_again_need_a_name(workplace, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(UserError, match="--max-restarts needs a --name"):
        ToyFit(TINY)
    assert list(workplace.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_signal_to_the_first_process_stops_all_and_is_answered(tmp_path, devices):
    command = [*PYTHON, *FLAGS, "--trainer.max_epochs=200", f"--trainer.devices={devices}"]
    with started(command, tmp_path) as process:
        last = tmp_path / "runs/run/checkpoints/last.ckpt"
        wait_until(lambda: last.exists() or process.poll() is not None, tmp_path)
        assert len(members(process.pid)) == devices
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: not members(process.pid), tmp_path)
        log = (tmp_path / "log").read_text()
        assert process.wait() == 75, log
    assert log.count("to resume, run python -m tests.fit with the same options and --name run") == 1
    assert "Traceback" not in log


@pytest.mark.slow
@cases(
    "rank hook workers",
    (1, "on_train_batch_start", 1),  # a worker of the dead process keeps its connection open
    (1, "on_validation_batch_start", 0),
    (0, "on_test_batch_start", 0),
)
def test_where_a_process_is_killed_the_other_ends_within_15_seconds_and_says_so(
    tmp_path, rank, hook, workers
):
    options = ["--trainer.devices=2", f"--data.num_workers={workers}"]
    command = [*PYTHON, *FLAGS, *options, *dies(rank, hook)]
    with started(command, tmp_path) as process:
        wait_until(lambda: (tmp_path / "died").exists() or process.poll() is not None, tmp_path)
        wait_until(lambda: not members(process.pid), tmp_path, patience=15)
        log = (tmp_path / "log").read_text()
        assert process.wait() != 0, log
    assert "Traceback" not in log
    reasons = ("error: another process of this run has ended", "terminated with code -9")
    assert rank == 0 or any(reason in log for reason in reasons), log
    assert not (tmp_path / "runs/run/metrics.json").exists()


@pytest.mark.slow
def test_torchrun_starts_a_run_again_that_lost_a_process(tmp_path):
    fit = [*FLAGS, "--trainer.devices=2", "--trainer.max_epochs=2"]
    succeed(torchrun(2, *fit, "--trainer.default_root_dir=whole"), tmp_path)
    # not with a --master-port: then what is started again meets what the killed processes left in
    # torchrun's own store
    command = [*PYTHON, "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=3", "-m"]
    again = succeed(
        [*command, *fit, *dies(1, "on_train_batch_start", 4)],
        tmp_path,
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
    )
    assert again.err.count("continuing runs/run in epoch") == 1
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


@pytest.mark.slow
def test_a_run_resumes_on_any_number_of_processes_with_the_same_batches(tmp_path):
    succeed([*PYTHON, *RECORDING, "--trainer.default_root_dir=whole"], tmp_path)
    undisturbed = global_batches(tmp_path)
    assert len(undisturbed) == 8
    for processes, stop in ((2, 1), (1, 3), (3, 5), (2, 99)):
        flags = [*RECORDING, f"--trainer.devices={processes}"]
        command = torchrun(processes, *flags, *dies(0, "on_train_batch_start", stop))
        finished = run(command, tmp_path)
        assert (finished.code == 0) == (stop == 99), str(finished)
        (tmp_path / "died").unlink(missing_ok=True)
        changed = finished.err.count(f"the number of processes is {processes}, not ")
        assert changed == (stop != 1), str(finished)  # another number each time
    assert global_batches(tmp_path) == undisturbed


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_process_that_was_asked_to_stop_before(first):
    def interrupted() -> None:
        StopRequest().listen()
        for number in (first, signal.SIGINT):
            os.kill(os.getpid(), number)

    assert wait([fork(interrupted, {})]) == [-signal.SIGINT]
