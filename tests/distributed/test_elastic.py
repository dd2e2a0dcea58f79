"""Runs that go on with another number of processes, or machines, take the same batches as one that was not disturbed."""

import sys
from pathlib import Path

import pytest

from tests.distributed.callbacks import TINY
from tests.distributed.processes import free_port, run, started, succeed, torchrun, wait_until

CALLBACK = "--trainer.callbacks+=tests.distributed.callbacks."
FLAGS = [*TINY, "--name=run", "--callbacks.last_checkpoint.every_n_steps=1", "--data.batch_size=12"]
FIT = ["project.fit", *FLAGS, "--trainer.max_epochs=2", f"{CALLBACK}RecordsBatches"]


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
    succeed([sys.executable, "-m", *FIT], place)
    batches = global_batches(place)
    assert len(batches) == 8
    return batches


@pytest.mark.slow
def test_a_run_resumes_on_any_number_of_processes_with_the_same_batches(tmp_path, undisturbed):
    for processes, stop in ((2, 1), (1, 3), (3, 5), (2, -1)):
        finished = run(torchrun(processes, *FIT, f"--trainer.callbacks.stop={stop}"), tmp_path)
        assert (finished.code == 0) == (stop < 0), str(finished)
        assert finished.err.count(f"; on {processes} process") == (stop != 1), str(finished)  # another number each time
    assert global_batches(tmp_path) == undisturbed


def machine(port: int, is_first: bool) -> list[str]:
    """torchrun as on one of at most two machines, which are this one; the first is where they meet."""
    options = ["--nnodes=1:2", "--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    options += [f"--rdzv-conf=is_host={is_first},last_call_timeout=5,keep_alive_interval=1", "--local-addr=127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", *FIT, f"{CALLBACK}LosesMachine"]


@pytest.mark.slow
def test_a_machine_may_be_killed_and_another_join(tmp_path, undisturbed):
    port = free_port()
    first, other = machine(port, is_first=True), machine(port, is_first=False)
    # in torchrun's shared store, a machine that joins waits in vain for the address of the first process
    extra = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with started(first, tmp_path, **extra) as stays, started(other, tmp_path, "dies", **extra, DIES="1"):
        wait_until(lambda: (tmp_path / "batches/5.0 of 1").exists() or stays.poll() is not None, tmp_path)
        with started(other, tmp_path, "joins", **extra) as joins:
            wait_until(lambda: None not in (stays.poll(), joins.poll()), tmp_path)
            log = "".join((tmp_path / name).read_text() for name in ("log", "joins"))
            assert (stays.returncode, joins.returncode) == (0, 0), log
    exact = "order and augmentation are exact, BatchNorm's shares of a batch and the last bits of weights are not"
    assert all(f"; on {now}: {exact}" in log for now in ("1 process, not 2", "2 processes, not 1"))
    assert global_batches(tmp_path) == undisturbed
