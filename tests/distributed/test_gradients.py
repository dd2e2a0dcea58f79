"""How gradients travel is a matter of configuration."""

import json

import pytest
import torch

from project.model.networks import build_network
from tests.distributed.callbacks import TINY
from tests.distributed.processes import ROOT, succeed, torchrun

HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
POWER_SGD = f"""
trainer:
  strategy:
    class_path: DDPStrategy
    init_args:
      ddp_comm_hook: {HOOKS}.powerSGD_hook
      ddp_comm_state:
        class_path: {HOOKS}.PowerSGDState
        init_args: {{process_group: null, matrix_approximation_rank: 2, start_powerSGD_iter: 2}}
"""
HEAD = ["--model.freeze=backbone", "--model.weights=weights.pth"]
RUNS = {
    "compressed": [f"--config={ROOT / 'configs' / 'hardware' / 'compressed_gradients.yaml'}"],
    # the head alone: with several buckets, gloo's threads finish its two-part exchanges in any order, and mix them up
    "power_sgd": ["--config=power_sgd.yaml", *HEAD],
    "head": HEAD,
}
EXPECTED: dict[str, dict[str, object]] = {
    "compressed": {"comm_hook": "bf16_compress_hook", "gradient_as_bucket_view": 1},
    "power_sgd": {"comm_hook": "powerSGD_hook", "state": "PowerSGDState"},
    "head": {"find_unused_parameters": 0},
}


@pytest.mark.slow
def test_how_gradients_travel_follows_the_configuration(tmp_path):
    (tmp_path / "power_sgd.yaml").write_text(POWER_SGD)
    torch.save(build_network("resnet9_slim", 8).state_dict(), tmp_path / "weights.pth")
    common = [*TINY, "--trainer.devices=2", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]
    common += ["--trainer.callbacks=tests.distributed.callbacks.GradientWitness"]
    commands = [
        ["project.fit", *flags, *common, f"--trainer.callbacks.out={name}.json", f"--name={name}"]
        for name, flags in RUNS.items()
    ]
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    finished = succeed(torchrun(2, "tests.distributed.jobs", "commands", "."), cwd=tmp_path, timeout=400)
    for name, expected in EXPECTED.items():
        said = json.loads((tmp_path / f"{name}.json").read_text())
        assert expected.items() <= said.items()
        assert said["steps"] == 3
        assert (tmp_path / "runs" / name / "metrics.json").exists()
    assert "unused" not in finished.err  # of the frozen backbone's parameters
    assert finished.err.count("ddp_comm_state is in no checkpoint") == 1
