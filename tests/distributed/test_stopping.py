"""Runs that lose a process or are asked to stop; signals only leave a note, and processes of one machine end together."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from torch.optim import SGD

from project.callbacks import StopOnNonFinite
from project.engine.cli.command import one_line_errors
from project.engine.errors import UserError
from project.engine.run.processes import StopRequest, _end_processes
from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.schedules import CosineWithWarmup
from tests.conftest import TINY as TINY_IN_PROCESS
from tests.distributed.callbacks import TINY
from tests.distributed.job import classifier, flowers, trainer
from tests.distributed.processes import descendants, end, environment, named, run, succeed, torchrun
from tests.stress import differences, outcome

FLAGS = [*TINY, "--name=run", "--callbacks.last_checkpoint.every_n_steps=1"]
FIT = [sys.executable, "-m", "project.fit", *FLAGS, "--trainer.max_epochs=200"]
LAST = Path("runs/run/checkpoints/last.ckpt")


@contextlib.contextmanager
def started(command, place, **extra):
    """A command that runs in a process group of its own, writes to the file ``log``, and is not left behind."""
    with open(place / "log", "w") as log:
        process = subprocess.Popen(
            command, cwd=place, env=environment(**extra), stdout=log, stderr=log, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            end([process])


def wait_until(condition, place, patience=120.0):
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {patience:.0f} s\n{(place / 'log').read_text()}")
        time.sleep(0.01)


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
        FitCLI(TINY_IN_PROCESS)
    assert "\n" not in str(caught.value)
    assert list(workplace.iterdir()) == []
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    FitCLI(TINY_IN_PROCESS)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_signal_to_the_first_process_stops_all_and_is_answered(tmp_path, devices):
    with started([*FIT, f"--trainer.devices={devices}"], tmp_path) as process:
        wait_until(lambda: (tmp_path / LAST).exists() or process.poll() is not None, tmp_path)
        assert len(members(process.pid)) == devices
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: process.poll() is not None, tmp_path)
        wait_until(lambda: not members(process.pid), tmp_path, patience=30)
        log = (tmp_path / "log").read_text()
        assert process.returncode == 75, log
    assert log.count("to resume, run the same command with --name run") == 1
    assert "Traceback" not in log


HOOKS = [(1, "on_train_batch_start"), (1, "on_validation_batch_start"), (0, "on_test_batch_start")]


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "hook"), HOOKS)
def test_where_a_process_is_killed_the_other_ends_within_15_seconds(tmp_path, rank, hook):
    death = ["--trainer.callbacks+=tests.distributed.callbacks.Dies", f"--trainer.callbacks.rank={rank}"]
    command = [*FIT[:3], *TINY, "--trainer.devices=2", *death, f"--trainer.callbacks.hook={hook}", "--name=run"]
    with started(command, tmp_path) as process:
        wait_until(lambda: (tmp_path / "died").exists() or process.poll() is not None, tmp_path, patience=300)
        wait_until(lambda: not members(process.pid), tmp_path, patience=15)
        log = (tmp_path / "log").read_text()
        assert process.wait() != 0, log
    assert "Traceback" not in log
    assert not (tmp_path / "runs/run/metrics.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_starts_a_run_again_that_lost_a_process(tmp_path, victim):
    places = {name: tmp_path / name for name in ("whole", "broken")}
    for place in places.values():
        place.mkdir()
    flags = [*FLAGS, "--trainer.devices=2", "--trainer.max_epochs=6"]
    succeed(torchrun(2, "project.fit", *flags), places["whole"])
    # not with a --master-port: then what is started again meets what the killed processes left in torchrun's own store
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=3"]
    command, place = [*launcher, "-m", "project.fit", *flags], places["broken"]
    with started(command, place, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1") as process:
        wait_until(lambda: (place / LAST).exists() or process.poll() is not None, place)
        started_by = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)}
        workers = [pid for pid, command in started_by.items() if b"project.fit" in command]
        assert len(workers) == 2
        os.kill(workers[victim], signal.SIGKILL)
        wait_until(lambda: process.poll() is not None, place)
        log = (place / "log").read_text()
        assert process.returncode == 0, log
    assert log.count("continuing runs/run in epoch") == 1
    assert differences(outcome(places["whole"] / "runs/run"), outcome(place / "runs/run")) == []


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
    flags = [*FLAGS, "--data.batch_size=12", "--trainer.max_epochs=2"]
    record = "--trainer.callbacks+=tests.distributed.callbacks.RecordsBatches"
    places = {name: tmp_path / name for name in ("whole", "elastic")}
    for place in places.values():
        (place / "batches").mkdir(parents=True)
    succeed([sys.executable, "-m", "project.fit", *flags, record], places["whole"])
    for processes, stop in ((2, 1), (1, 3), (3, 5), (2, -1)):
        command = torchrun(processes, "project.fit", *flags, record, f"--trainer.callbacks.stop={stop}")
        finished = run(command, places["elastic"])
        assert (finished.code == 0) == (stop < 0), str(finished)
        assert finished.err.count(f"; on {processes} process") == (stop != 1), str(finished)  # another number each time
    assert len(expected := global_batches(places["whole"])) == 8
    assert global_batches(places["elastic"]) == expected


BAD_STEP, BAD_RANK = 3, 1


class OneBadLoss(ImageClassifier):
    """A loss that is infinite in one step of one process, with finite gradients."""

    def training_step(self, batch, batch_idx):
        bad = self.trainer.global_step + 1 == BAD_STEP and self.trainer.global_rank == BAD_RANK
        return super().training_step(batch, batch_idx) + (math.inf if bad else 0.0)


class Witness(Callback):
    """Keeps the parameters and the names of the images from the start of each step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        train = trainer.datamodule.splits["train"]
        images = [train.name(index) for index in batch.indices.tolist()]
        self.seen = {"step": trainer.global_step + 1, "images": images, "before": parameters(pl_module)}


def parameters(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def finite(out):
    """Trains until the loss of the second process alone is infinite, its gradients finite."""
    model = classifier(optimizer=partial(SGD, lr=0.01), lr_scheduler=partial(CosineWithWarmup, warmup_epochs=0))
    model.__class__, witness = OneBadLoss, Witness()
    one = trainer(int(os.environ["WORLD_SIZE"]), callbacks=[witness, StopOnNonFinite()], limit_val_batches=0)
    with one_line_errors():
        try:
            one.fit(model, datamodule=flowers(40, 5, 8))
        except BaseException as error:
            seen = {**witness.seen, "error": str(error), "after": parameters(model)}
            torch.save(seen, out / f"{one.global_rank}.pt")
            raise


@pytest.mark.slow
def test_a_loss_that_is_infinite_in_one_process_stops_all_before_the_step_and_names_its_images(tmp_path):
    finished = run(torchrun(2, "tests.distributed.job", *named(finite, tmp_path)), tmp_path)
    seen = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    assert finished.code != 0
    for rank in seen:
        assert rank["step"] == BAD_STEP
        assert differences(rank["before"], rank["after"]) == []
    assert f"training stopped at step {BAD_STEP}: the loss is inf in process {BAD_RANK}" in finished.err
    assert len(seen[BAD_RANK]["images"]) == 4
    assert all(f"'{name}'" in finished.err for name in seen[BAD_RANK]["images"])
    assert "another process" in seen[0]["error"]
    assert len([line for line in finished.err.splitlines() if line.startswith("error: ")]) == 2
    assert "[rank" not in finished.err  # as torch begins the traceback of a process


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
