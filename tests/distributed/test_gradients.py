"""How gradients travel is a matter of configuration."""

import json
from pathlib import Path

import pytest
import torch

from project.model.networks import build_network
from tests.distributed.processes import ROOT, succeed, torchrun
from tests.distributed.tiny import TINY, read

POWER_SGD = """
trainer:
  strategy:
    class_path: DDPStrategy
    init_args:
      ddp_comm_hook: torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.powerSGD_hook
      ddp_comm_state:
        class_path: torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook.PowerSGDState
        init_args:
          process_group: null
          matrix_approximation_rank: 2
          start_powerSGD_iter: 2
"""
DDP = "--trainer.strategy=DDPStrategy"
RUNS = {
    "compressed": [f"--config={ROOT / 'configs' / 'hardware' / 'compressed_gradients.yaml'}"],
    # the head alone: with several buckets, gloo's threads finish its two-part exchanges in any order, and mix them up
    "power_sgd": ["--config=power_sgd.yaml", "--model.freeze=backbone", "--model.weights=weights.pth"],
    "static_graph": [DDP, "--trainer.strategy.static_graph=true"],
    "bucket_view": [DDP, "--trainer.strategy.gradient_as_bucket_view=true"],
    "head": ["--model.freeze=backbone", "--model.weights=weights.pth"],
}
pytestmark = pytest.mark.slow
WITNESS = "--trainer.callbacks=tests.distributed.job_commands.GradientWitness"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a run of each kind, all of one launch on two processes."""
    place: Path = tmp_path_factory.mktemp("gradients")
    (place / "power_sgd.yaml").write_text(POWER_SGD)
    torch.save(build_network("resnet9_slim", 8).state_dict(), place / "weights.pth")
    common = [*TINY, "--trainer.devices=2", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1", WITNESS]
    commands = [
        ["project.fit", *flags, *common, f"--trainer.callbacks.out={name}.json", f"--name={name}"]
        for name, flags in RUNS.items()
    ]
    finished = succeed(torchrun(2, "tests.distributed.job_commands", json.dumps(commands)), cwd=place, timeout=400)
    (place / "err").write_text(finished.err)
    return place


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("compressed", {"comm_hook": "bf16_compress_hook", "gradient_as_bucket_view": 1}),
        ("power_sgd", {"comm_hook": "powerSGD_hook", "state": "PowerSGDState"}),
        ("static_graph", {"static_graph": 1}),
        ("bucket_view", {"gradient_as_bucket_view": 1}),
        ("head", {"find_unused_parameters": 0}),
    ],
)
def test_how_gradients_travel_follows_the_configuration(place, run, expected):
    said = read(place / f"{run}.json")
    assert expected.items() <= said.items()
    assert said["steps"] == 3
    assert (place / "runs" / run / "metrics.json").exists()


def test_a_frozen_backbone_calls_forth_no_word_about_unused_parameters(place):
    assert "unused" not in (place / "err").read_text()


def test_a_hook_whose_state_no_checkpoint_has_is_said_at_the_start(place):
    assert (place / "err").read_text().count("ddp_comm_state is in no checkpoint") == 1
