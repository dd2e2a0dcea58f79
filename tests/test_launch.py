"""The files of examples/launch: their commands are accepted, and so are they by what they are written for."""

import re
import shlex
import subprocess
from typing import Any

import pytest
import yaml

from tests.distributed.processes import ROOT
from tests.engine.cli.test_command_line import parse

LAUNCH = ROOT / "examples" / "launch"
TRAIN_JOB, TASK = (yaml.safe_load((LAUNCH / name).read_text()) for name in ("trainjob.yaml", "sky.yaml"))
SCRIPTS = {"slurm": (LAUNCH / "slurm.sh").read_text(), "sky": TASK["run"]}


@pytest.mark.parametrize(("code", "requeued"), [(0, ""), *((code, "requeue 7\n") for code in (75, 138, 143)), (2, "")])
def test_slurms_batch_script_asks_for_another_turn_after_a_stop_alone(code, requeued):
    stubs = f'srun() {{ return {code}; }}\nscontrol() {{ echo "$@"; }}\n'
    script = ["bash", "-c", stubs + SCRIPTS["slurm"]]
    found = subprocess.run(script, env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == (requeued, 0 if requeued else code)


def test_the_commands_are_accepted(tmp_path):
    shown = re.findall(r"^# sbatch \S+ (.*)", SCRIPTS["slurm"], re.M)
    in_scripts = [re.findall(r"-m project\.fit (.*)", script)[0] for script in SCRIPTS.values()]
    places = {"/shared/images": tmp_path, "FOLDER": tmp_path, "configs/finetune.yaml": ROOT / "configs/finetune.yaml"}
    for options in [*shown, *in_scripts, shlex.join(TRAIN_JOB["spec"]["trainer"]["args"])]:
        assert parse(*(str(places.get(word, word)) for word in shlex.split(options) if word != "$@")).data
    assert TRAIN_JOB["spec"]["trainer"]["command"] == ["torchrun", "-m", "project.fit"]


def test_kubeflows_models_keep_every_key_of_the_job():
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="needs kubeflow-trainer-api")
    assert models.TrainerV1alpha1TrainJob.from_dict(TRAIN_JOB).to_dict() == TRAIN_JOB
    spec: Any = TRAIN_JOB["spec"]  # which the models do not check
    assert (TRAIN_JOB["apiVersion"], TRAIN_JOB["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert spec["trainer"]["numProcPerNode"] == spec["trainer"]["resourcesPerNode"]["limits"]["nvidia.com/gpu"]


def test_the_task_fits_skypilots_schemas():
    schemas = pytest.importorskip("sky.utils.schemas", reason="needs skypilot")
    validate = pytest.importorskip("jsonschema").validate
    validate(TASK, schemas.get_task_schema())
    validate(TASK["resources"], schemas.get_resources_schema())
