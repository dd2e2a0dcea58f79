"""One command, started in each way that Lightning knows, does the same and speaks once."""

import functools
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from lightkeeper.cli._changes import SameOptions
from lightkeeper.exact import UserError
from lightkeeper.images import Predictions
from lightning.pytorch.utilities import rank_zero_only

from tests.job import CALLBACK, TINY
from tests.processes import (
    Finished,
    free_port,
    is_running,
    launched as launched_by_torchrun,
    run,
    run_together,
    torchrun,
    wait_until,
)
from tests.toy import BEST, RUN, ToyData, ToyFit, cases, curve, fit, load, one_line, read_json, toy

FIT = [sys.executable, "-m", "tests.fit", *TINY, "--trainer.devices=auto"]
STOP = ["--trainer.callbacks+=tests.toy.AtStep", "--trainer.callbacks.step=1"]


def by_slurm(place: Path, *flags: str) -> list[Finished]:
    """The variables that srun gives two tasks on one node, and two processes."""
    job = {
        "JOB_ID": "4711",
        "JOB_NAME": "flowers",
        "JOB_NODELIST": "localhost",
        "NODELIST": "localhost",
        "NNODES": "1",
        "NODEID": "0",
        "NTASKS": "2",
        "NTASKS_PER_NODE": "2",
        "STEP_ID": "0",
        "STEP_NUM_TASKS": "2",
        "STEP_NUM_NODES": "1",
    }
    common = {f"SLURM_{name}": value for name, value in job.items()}
    common["MASTER_PORT"] = str(free_port())
    tasks = [{**common, "SLURM_PROCID": task, "SLURM_LOCALID": task} for task in "01"]
    return run_together([([*FIT, *flags], task) for task in tasks], place)


def by_two_machines(place: Path, *of_second: str) -> list[Finished]:
    """torchrun as on two machines, which are this one."""
    meeting = ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", *meeting]
    machines = [[*torchrun, "--nproc-per-node=1", f"--node-rank={rank}"] for rank in range(2)]
    flags = [(), of_second]
    return run_together(
        [([*machine, *FIT[1:], *own], {}) for machine, own in zip(machines, flags, strict=True)],
        place,
    )


WAYS: dict[str, Callable[[Path], list[Finished]]] = {
    "lightning": lambda place: [run([*FIT, "--trainer.devices=2"], place)],
    "torchrun": lambda place: [run(torchrun(2, *FIT[2:]), place)],
    "slurm": by_slurm,
    "machines": by_two_machines,
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> Any:
    """Starts the run in a way, once; returns its folder, its metrics, and what it wrote."""

    @functools.cache
    def launch(way: str) -> tuple[Path, Any, str, str]:
        place: Path = tmp_path_factory.mktemp(way)
        processes = WAYS[way](place)
        assert all(process.code == 0 for process in processes), "\n".join(map(str, processes))
        (folder,) = (place / "runs").iterdir()
        out = "".join(process.out for process in processes)
        err = "".join(process.err for process in processes)
        return folder, read_json(folder / "metrics.json"), out, err

    return launch


@pytest.mark.parametrize(
    "way", ["lightning", *(pytest.param(way, marks=pytest.mark.slow) for way in [*WAYS][1:])]
)
def test_every_way_leads_to_the_same_metrics_fills_one_folder_and_speaks_once(way, launched):
    (folder, measured, out, err), (_, expected, *_) = launched(way), launched("lightning")
    for split, size in {"val": 25, "test": 27}.items():
        correct = size * measured[split]["accuracy"]
        assert correct == pytest.approx(round(correct), abs=1e-4)  # of so many images
        loss = pytest.approx(expected[split]["loss"], rel=1e-5)
        assert measured[split] == expected[split] | {"loss": loss}
    files = [path.name for path in folder.rglob("*") if path.is_file()]
    writers = {name.split(".")[-2] for name in files if "tfevents" in name}
    assert len(writers) == 1  # the number of a process
    assert files.count("best.ckpt") == files.count("metrics.json") == 1
    assert err.count("training toy") == err.count("on 2 x cpu") == 1
    assert out.count("best checkpoint") == 1
    # before there is a folder, before training and before the test
    assert out.count("downloading") == 3 * (2 if way == "machines" else 1)
    assert "warn" not in err.lower()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["lightning", "torchrun"])
def test_an_error_is_printed_once(launcher, tmp_path):
    command = [*FIT, "--trainer.devices=2", "--data.batch_size=15"]
    finished = run(command if launcher == "lightning" else torchrun(2, *command[2:]), tmp_path)
    assert finished.code != 0
    assert finished.err.count("error: --data.batch_size: must be a multiple of") == 1, str(finished)


def test_torchrun_must_start_as_many_processes_as_are_asked_for(workplace, monkeypatch):
    for name, value in launched_by_torchrun(2)[0].items():
        monkeypatch.setenv(name, value)
    assert ToyFit([*TINY, "--trainer.devices=2"]).trainer.world_size == 2
    with pytest.raises(UserError, match="is 3, but the launcher started 2"):
        ToyFit([*TINY, "--trainer.devices=3"])


@cases("rank", "0", "1")
def test_variables_that_another_command_has_left_are_no_launcher(
    workplace, monkeypatch, capsys, rank
):
    monkeypatch.setattr(rank_zero_only, "rank", int(rank))  # as Lightning is imported
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("LOCAL_RANK", rank)
    line = one_line(lambda: ToyFit([*TINY, "--trainer.devices=2"]), capsys)
    assert line == (
        "error: LOCAL_RANK: must be unset, or set with MASTER_PORT by what starts the other"
        f" processes, got {rank}"
    )
    fit(*TINY)
    assert curve(RUN, "val/accuracy")


BATCH = {"JOB_ID": "47", "JOB_NAME": "flowers", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
TASKS = {"NTASKS": "4", "NTASKS_PER_NODE": "4"}


@cases(
    "job flags text",
    (TASKS, ["--trainer.devices=auto"], "is 4, but the launcher started 1; put srun before python"),
    (TASKS, ["--trainer.devices=2"], "is 2, but the launcher started 1; put srun before python"),
    ({"NTASKS": "1"}, ["--trainer.devices=2"], "is 2, but the launcher started 1; put srun"),
    ({"NTASKS": "4"}, [], "Use `--ntasks-per-node=4` instead"),
    (
        {"JOB_NAME": "interactive", "NTASKS": "2", "STEP_NUM_TASKS": "2"},
        ["--trainer.devices=2"],
        "Lightning does not know srun in a job called interactive",
    ),
)
def test_a_batch_script_of_slurm_that_starts_fewer_processes_than_tasks_is_one_line(
    workplace, monkeypatch, job, flags, text
):
    """It waited for the others; or one process trained, for two devices."""
    for name, value in (BATCH | job).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(UserError, match=re.escape(text)):
        ToyFit([*TINY, *flags])


@cases("job", TASKS, {"NTASKS": "1"}, {"NTASKS": "4"})
def test_a_batch_script_of_slurm_may_use_one_device(workplace, monkeypatch, job):
    for name, value in (BATCH | job).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    own = "--trainer.plugins+=LightningEnvironment" if job == {"NTASKS": "4"} else "--name=a"
    assert ToyFit([*TINY, "--trainer.devices=1", own]).trainer.world_size == 1


def test_predictions_in_python_need_no_launcher(monkeypatch):
    for name, value in (BATCH | {"NTASKS": "4"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    data = ToyData()
    data.setup("test")
    assert len(Predictions.of_split(toy(), data).indices) == 25


@pytest.mark.slow
def test_every_task_of_slurm_that_is_stopped_asks_for_another_turn(tmp_path):
    assert [task.code for task in by_slurm(tmp_path, *STOP)] == [75, 75]


@pytest.mark.slow
def test_where_the_first_process_fails_alone_none_is_left(tmp_path):
    finished = run([*FIT, "--trainer.devices=2", f"{CALLBACK}FirstFails"], tmp_path)
    assert finished.code == 2, str(finished)
    assert finished.err.count("error: only the first one fails") == 1
    other = int((tmp_path / "busy").read_text())
    wait_until(lambda: not is_running(other), tmp_path, patience=15)


@pytest.mark.slow
def test_a_run_whose_standard_streams_are_closed_writes_none_of_them_into_its_files(tmp_path):
    """Its files get the numbers of closed streams, to which processes that it starts would write."""
    command = shlex.join([*FIT[:-1], "--name=run", "--trainer.devices=2"])
    done = run(["bash", "-c", f"exec {command} <&- >&- 2>&-"], tmp_path)
    assert done.code == 0
    assert load(tmp_path / BEST)["about"]["step"] == 3
    assert read_json(tmp_path / RUN / "metrics.json")["test"].keys() == {"loss", "accuracy"}
    assert len(curve(tmp_path / RUN, "train/loss")) == 3


@cases(
    "first second complaint",
    (
        {"model.optimizer.lr": 0.1},
        {"model.optimizer.lr": 0.2},
        "lr is 0.1 on .* but 0.2 on another",
    ),
    ({"trainer.precision": "bf16-mixed"}, {"trainer.precision": "32-true"}, "precision is bf16-mi"),
    ({"model.arch": "timm/a"}, {"model.arch": "timm/b"}, "arch is timm/a on the first process"),
    ({"data.batch_size": 16}, {"data.batch_size": 32}, "batch_size is 16 on the first process"),
    ({"seed_everything": 0}, {"seed_everything": 1}, "seed_everything is 0 on the first process"),
    ({"monitor": "val/f1"}, {"monitor": "val/loss"}, "monitor is val/f1 on the first process"),
    (
        {"callbacks.best_checkpoint": True},
        {"callbacks.best_checkpoint": False},
        "best_checkpoint is True on the first process",
    ),
    # what machines may have of their own, and what is equal
    ({"data.root": "here", "data.cache": "a"}, {"data.root": "there", "data.cache": "b"}, None),
    ({"model.weights": "a.pt", "data.own": 1}, {"model.weights": "b.pt", "data.own": 2}, None),
    ({"model.own": "/scratch/1"}, {"model.own": "/scratch/2"}, None),
    ({"model.ramp": "<Ramp object at 0x7f1>"}, {"model.ramp": "<Ramp object at 0x7f2>"}, None),
    ({"model.tags": ["b", "a"]}, {"model.tags": ["a", "b"]}, None),
    ({"model.fill": float("nan")}, {"model.fill": -float("nan")}, None),
)
@pytest.mark.parametrize("changed", [False, True], ids=["", "other classes"])
def test_options_that_decide_must_be_those_of_all_processes(
    first, second, complaint, changed, monkeypatch
):
    saved: list[str] = []
    own = SameOptions(first, ["a", "b"], lambda: saved.append("config"))
    theirs = SameOptions(second, ["a", "c"] if changed else ["a", "b"], list)
    monkeypatch.setattr("lightkeeper.cli._changes.gather", lambda facts: [facts, theirs._facts])
    complaint = complaint or ("the list of classes is" if changed else None)
    with pytest.raises(UserError, match=complaint) if complaint else nullcontext():
        own.setup(Mock(is_global_zero=True), Mock(), "fit")
    assert saved == ([] if complaint else ["config"])


@pytest.mark.slow
def test_machines_that_run_different_commands_say_so(tmp_path):
    """Each trained by its own options, or waited for a batch that the other did not have."""
    for machine in by_two_machines(tmp_path, "--model.optimizer.lr=0.5"):
        assert machine.code != 0
        assert machine.err.count("error: --model.optimizer.lr is ") == 1, str(machine)
