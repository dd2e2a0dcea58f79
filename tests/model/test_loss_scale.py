"""A loss scale by options: dynamic or static, and without a part in what is learned.

On a CPU, torch computes in float16, too, where the plugin says so; only slowly.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small import load, small

ROOT = Path(__file__).parents[2]
LAST = Path("runs/run/checkpoints/last.ckpt")
SCALER = "--trainer.plugins.scaler"
FLOAT16 = [
    "--trainer.precision=null",  # the plugin says it
    "--trainer.plugins=MixedPrecision",
    "--trainer.plugins.precision=16-mixed",
    "--trainer.plugins.device=cpu",
    f"{SCALER}=torch.amp.GradScaler",
    f"{SCALER}.device=cpu",
]


def scaler_of(checkpoint: Path) -> Any:
    return load(checkpoint)["MixedPrecision"]


def test_a_static_scale_stays_and_weights_do_not_depend_on_it(workplace):
    ends = {}
    for scale in (256, 4096):
        static = [*FLOAT16, f"{SCALER}.init_scale={scale}", f"{SCALER}.growth_interval=1000000000"]
        small(*static, f"--trainer.default_root_dir=of_{scale}")
        last = Path(f"of_{scale}/run/checkpoints/last.ckpt")
        assert scaler_of(last)["scale"] == scale
        ends[scale] = load(last)["state_dict"]
    for name, value in ends[256].items():  # a power of two moves no digit, but for gradients near float16's least
        torch.testing.assert_close(value, ends[4096][name], rtol=0.02, atol=2e-3)


STATIC = """
trainer:
  plugins:
    class_path: lightning.pytorch.plugins.MixedPrecision
    init_args:
      precision: 16-mixed
      device: cpu
      scaler:
        class_path: torch.amp.GradScaler
        init_args:
          device: cpu
          init_scale: 1024
          growth_interval: 1000000000
"""


def test_a_config_sets_the_loss_scale(workplace):
    Path("scale.yaml").write_text(STATIC)
    small("--config=scale.yaml", "--trainer.precision=null")
    assert scaler_of(LAST)["scale"] == 1024


@pytest.mark.filterwarnings("ignore:.*AMP with fp16 is not supported on CPU.*")
def test_on_a_cpu_the_short_option_is_bfloat16(workplace):
    cli = small("--trainer.precision=16-mixed")
    assert cli.trainer.precision == "bf16-mixed"
    assert "MixedPrecision" not in load(LAST)
