"""The files of examples/launch ask for another turn where they should, and their commands are accepted."""

import re
import shlex
import subprocess

import yaml

from tests.conftest import ROOT, cases
from tests.test_command_line import parse

LAUNCH = ROOT / "examples" / "launch"
SLURM = (LAUNCH / "slurm.sh").read_text()


@cases("code requeued", (0, ""), (2, ""), *((code, "requeue 7\n") for code in (75, 138, 143)))
def test_slurms_batch_script_asks_for_another_turn_after_a_stop_alone(code, requeued):
    stubs = f'srun() {{ return {code}; }}\nscontrol() {{ echo "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", stubs + SLURM],
        env={"SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (requeued, 0 if requeued else code)


def test_the_commands_are_accepted(tmp_path):
    trainer = yaml.safe_load((LAUNCH / "trainjob.yaml").read_text())["spec"]["trainer"]
    sky = yaml.safe_load((LAUNCH / "sky.yaml").read_text())["run"]
    commands = re.findall(r"^# sbatch \S+ (.*)", SLURM, re.M)
    commands += [re.findall(r"-m project\.fit (.*)$", script, re.M)[0] for script in (SLURM, sky)]
    places = {
        **dict.fromkeys(["/shared/images", "FOLDER"], tmp_path),
        "configs/finetune.yaml": ROOT / "configs/finetune.yaml",
    }
    for options in [*commands, shlex.join(trainer["args"])]:
        words = [str(places.get(word, word)) for word in shlex.split(options) if word != "$@"]
        assert parse(*words).data
    assert trainer["command"] == ["torchrun", "-m", "project.fit"]
