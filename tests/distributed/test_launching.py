"""One command, started in each way that docs/many_devices.md and examples/launch show, does the same and speaks once."""

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from project.engine.errors import UserError
from project.engine.run.processes import EXIT_CODE
from project.fit import FitCLI
from tests.conftest import as_in_a_terminal, cases
from tests.distributed.job import CALLBACK, TINY
from tests.distributed.processes import (
    ROOT,
    Finished,
    free_port,
    run,
    run_together,
    succeed,
    torchrun,
)
from tests.engine.cli.test_command_line import parse
from tests.engine.toy import differences, outcome

PLOTS = ["curves.png", "confusion_matrix.png", "classes.png"]
FIT = [sys.executable, "-m", "project.fit", *TINY]
LAUNCH = ROOT / "examples" / "launch"
TRAIN_JOB, TASK = (
    yaml.safe_load((LAUNCH / name).read_text()) for name in ("trainjob.yaml", "sky.yaml")
)
SCRIPTS = {"slurm": (LAUNCH / "slurm.sh").read_text(), "sky": TASK["run"]}
STOP = ["--trainer.callbacks+=tests.small.AtStep", "--trainer.callbacks.step=1"]


def by_slurm(place: Path, *flags: str) -> list[Finished]:
    """The variables that srun gives two tasks on one node, and two processes."""
    job = {
        "JOB_ID": "4711",
        "JOB_NAME": "flowers",
        "JOB_NODELIST": "localhost",
        "NODELIST": "localhost",
    }
    job |= {"NNODES": "1", "NODEID": "0", "NTASKS": "2", "NTASKS_PER_NODE": "2"}
    job |= {"STEP_ID": "0", "STEP_NUM_TASKS": "2", "STEP_NUM_NODES": "1"}
    common = {
        "MASTER_PORT": str(free_port()),
        **{f"SLURM_{name}": value for name, value in job.items()},
    }
    tasks = [{**common, "SLURM_PROCID": task, "SLURM_LOCALID": task} for task in "01"]
    return run_together([([*FIT, *flags], task) for task in tasks], place)


def by_two_machines(place: Path) -> list[Finished]:
    """torchrun as on two machines, which are this one."""
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    return run_together(
        [([*launcher, f"--node-rank={rank}", *FIT[1:]], {}) for rank in range(2)], place
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
        out, err = (
            "".join(process.out for process in processes),
            "".join(process.err for process in processes),
        )
        return folder, json.loads((folder / "metrics.json").read_text()), out, err

    return launch


@pytest.mark.parametrize(
    "way", ["lightning", *(pytest.param(way, marks=pytest.mark.slow) for way in [*WAYS][1:])]
)
def test_every_way_leads_to_the_same_metrics_fills_one_folder_and_speaks_once(way, launched):
    (folder, measured, out, err), (_, expected, *_) = launched(way), launched("lightning")
    for split, size in {"val": 25, "test": 27}.items():
        assert (
            measured[split]["total"] == size == sum(map(sum, measured[split]["confusion_matrix"]))
        )
        assert measured[split] == expected[split] | {
            "loss": pytest.approx(expected[split]["loss"], rel=1e-5)
        }
    files = Counter(
        path.name for path in folder.rglob("*") if path.is_file() and "tfevents" not in path.name
    )
    assert files == dict.fromkeys(
        ["config.yaml", "metrics.json", "metrics.csv", "best.ckpt", "last.ckpt", *PLOTS], 1
    )
    writers = {path.name.split(".")[-2] for path in folder.glob("events.out.tfevents.*")}
    assert len(writers) == 1  # the number of a process
    assert err.count("training resnet9_slim") == 1
    assert "on 2 x cpu" in err
    assert [
        out.count(line) for line in ("best checkpoint", "macro F1", "tensorboard --logdir")
    ] == [1, 1, 1]
    # before there is a folder, before training and before the test
    assert out.count("downloading") == 3 * (2 if way == "machines" else 1)
    assert [line for line in err.splitlines() if "Warning" in line or "warn" in line] == []


def errors(finished: Finished) -> list[str]:
    """The error lines of a command that failed; the launcher's own traceback follows those of torchrun."""
    own = finished.err.partition("torch/distributed/run.py")[0]
    assert finished.code != 0
    assert own.count("Traceback") == ("torch/distributed/run.py" in finished.err)
    return [line for line in finished.err.splitlines() if line.startswith("error: ")]


@pytest.mark.slow
@cases(
    "launcher flag complaint",
    ("lightning", "--data.batch_size=15", "--data.batch_size must be a multiple of"),
    ("torchrun", "--data.batch_size=15", "--data.batch_size must be a multiple of"),
    (
        "torchrun",
        "--trainer.devices=1",
        "--trainer.devices times --trainer.num_nodes is 1, but the launcher started 2",
    ),
)
def test_an_error_is_printed_once(launcher, flag, complaint, tmp_path):
    command = [*FIT, "--trainer.devices=2", flag]
    finished = run(command if launcher == "lightning" else torchrun(2, *command[2:]), tmp_path)
    assert [line.startswith(f"error: {complaint}") for line in errors(finished)] == [True], str(
        finished
    )


def test_torchrun_must_start_as_many_processes_as_are_asked_for(workplace, monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK"):
        monkeypatch.setenv(name, "0")
    for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    assert FitCLI(TINY).trainer.world_size == 1
    with pytest.raises(UserError, match="is 2, but the launcher started 1"):
        FitCLI([*TINY, "--trainer.devices=2"])


def test_an_srun_that_is_not_used_is_no_warning(workplace, monkeypatch):
    (workplace / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(workplace), prepend=os.pathsep)
    with as_in_a_terminal():
        assert FitCLI(TINY).trainer.world_size == 1


@pytest.mark.slow
@pytest.mark.skipif(
    not shutil.which("sbatch") or os.system("sinfo >/dev/null") > 0,
    reason="needs SLURM to run jobs",
)
def test_a_job_of_slurm_that_is_stopped_is_queued_again_and_ends_in_the_same_weights(tmp_path):
    succeed([*FIT, "--trainer.devices=2", "--name=whole"], tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = [
        "sbatch",
        "--parsable",
        "--ntasks-per-node=2",
        "--gpus-per-node=0",
        str(LAUNCH / "slurm.sh"),
    ]
    number = succeed([*job, *FIT[3:], *STOP], tmp_path, PATH=path).out.strip()
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            ["bash", "-c", f"while squeue -h -j {number} | grep -q .; do sleep 1; done"],
            timeout=400,
        )
    log = (tmp_path / f"slurm-{number}.out").read_text()
    assert log.count("stopped after step 1") == log.count(f"continuing runs/{number}") == 1, log
    assert (
        differences(outcome(tmp_path / "runs/whole"), outcome(tmp_path / "runs" / number)) == []
    ), log


@pytest.mark.slow
def test_every_task_of_slurm_that_is_stopped_asks_for_another_turn(tmp_path):
    assert [task.code for task in by_slurm(tmp_path, *STOP)] == [EXIT_CODE, EXIT_CODE]


@pytest.mark.slow
def test_where_the_first_process_fails_alone_none_is_left(tmp_path):
    finished = run([*FIT, "--trainer.devices=2", f"{CALLBACK}FirstFails"], tmp_path)
    assert finished.code == 2, str(finished)
    assert errors(finished) == ["error: only the first one fails"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "busy").read_text()), 0)


@pytest.mark.parametrize(
    ("code", "requeued"), [(0, ""), *((code, "requeue 7\n") for code in (75, 138, 143)), (2, "")]
)
def test_slurms_batch_script_asks_for_another_turn_after_a_stop_alone(code, requeued):
    stubs = f'srun() {{ return {code}; }}\nscontrol() {{ echo "$@"; }}\n'
    script = ["bash", "-c", stubs + SCRIPTS["slurm"]]
    found = subprocess.run(
        script, env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.returncode) == (requeued, 0 if requeued else code)


def test_the_commands_are_accepted(tmp_path):
    shown = re.findall(r"^# sbatch \S+ (.*)", SCRIPTS["slurm"], re.M)
    in_scripts = [re.findall(r"-m project\.fit (.*)", script)[0] for script in SCRIPTS.values()]
    places = {
        "/shared/images": tmp_path,
        "FOLDER": tmp_path,
        "configs/finetune.yaml": ROOT / "configs/finetune.yaml",
    }
    for options in [*shown, *in_scripts, shlex.join(TRAIN_JOB["spec"]["trainer"]["args"])]:
        assert parse(
            *(str(places.get(word, word)) for word in shlex.split(options) if word != "$@")
        ).data
    assert TRAIN_JOB["spec"]["trainer"]["command"] == ["torchrun", "-m", "project.fit"]


def test_kubeflows_models_keep_every_key_of_the_job():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")
    assert models.TrainerV1alpha1TrainJob.from_dict(TRAIN_JOB).to_dict() == TRAIN_JOB
    spec: Any = TRAIN_JOB["spec"]  # which the models do not check
    assert (TRAIN_JOB["apiVersion"], TRAIN_JOB["kind"]) == (
        "trainer.kubeflow.org/v1alpha1",
        "TrainJob",
    )
    assert (
        spec["trainer"]["numProcPerNode"]
        == spec["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"]
    )


def test_the_task_fits_skypilots_schemas():
    schemas = pytest.importorskip("sky.utils.schemas", reason="needs skypilot")
    validate = pytest.importorskip("jsonschema").validate
    validate(TASK, schemas.get_task_schema())
    validate(TASK["resources"], schemas.get_resources_schema())
