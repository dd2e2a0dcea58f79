"""The command hands further arguments to what builds the network, and a checkpoint remembers them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from project.model import ImageClassifier
from tests.conftest import QUIET, TINY_DATA, TINY_TRAINER, evaluate, fit
from tests.model.test_classifier import NAMES, PREPROCESSING
from tests.options.test_given import parse
from tests.small import AtStep, load, one_line
from tests.stress import differences, outcome

RUN = Path("runs/run")
DROPPING = [f"--model.arch={__name__}.Residual", "--model.arch_args.drop=0.5", "--model.arch_args.width=6"]


class Residual(nn.Module):
    """One residual branch that is dropped at random."""

    def __init__(self, num_classes: int, drop: float = 0.0, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=4)
        self.branch = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.drop = StochasticDepth(drop, "row")
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        logits: Tensor = self.head((x + self.drop(self.branch(x))).mean((2, 3)))
        return logits


def test_flags_and_configs_give_the_same_arguments(workplace):
    Path("c.yaml").write_text("model: {arch: convnext_tiny, arch_args: {stochastic_depth_prob: 0.3}}")
    flag = parse("--model.arch=convnext_tiny", "--model.arch_args.stochastic_depth_prob=0.3")
    for config in (flag, parse("--config=c.yaml"), parse('--model.arch_args={"stochastic_depth_prob": 0.3}')):
        assert config.model.init_args.arch_args == {"stochastic_depth_prob": 0.3}
    both = parse("--config=c.yaml", "--model.arch_args.layer_scale=1e-3")
    assert both.model.init_args.arch_args == {"stochastic_depth_prob": 0.3, "layer_scale": 0.001}


def test_a_run_that_drops_branches_is_resumed_exactly_and_its_checkpoint_builds_the_same_network(
    workplace, monkeypatch
):
    flags = [*TINY_DATA, *TINY_TRAINER, *QUIET, *DROPPING, "--trainer.max_epochs=2", "--name=run"]
    fit(*flags, "--trainer.default_root_dir=whole")
    with monkeypatch.context() as patch:
        own = ImageClassifier.configure_callbacks
        patch.setattr(ImageClassifier, "configure_callbacks", lambda model: [*own(model), AtStep(6)])
        with pytest.raises(SystemExit):
            fit(*flags)
    assert load(RUN / "checkpoints" / "last.ckpt")["global_step"] == 6
    fit(*flags)
    assert not differences(outcome(Path("whole/run")), outcome(RUN))
    model = ImageClassifier.load_from_checkpoint(RUN / "checkpoints" / "best.ckpt")
    network = model.network
    assert isinstance(network, Residual)
    assert (network.drop.p, network.stem.out_channels) == (0.5, 6)
    evaluate(f"--ckpt_path={RUN}/checkpoints/best.ckpt")


def test_an_argument_that_the_network_does_not_take_is_an_error_before_there_is_a_run(workplace, capsys):
    flags = ["--model.arch=resnet18", "--model.arch_args.drop_path_rate=0.1"]
    said = one_line(lambda: fit(*TINY_DATA, *TINY_TRAINER, *QUIET, *flags), capsys)
    assert "--model.arch_args: resnet18 does not take drop_path_rate=0.1 (" in said
    assert "unexpected keyword argument 'drop_path_rate'" in said
    assert not Path("runs").exists()


def test_without_arguments_a_branch_is_never_dropped_and_with_them_as_often_as_asked():
    def kept(**args: float) -> float:
        torch.manual_seed(0)
        model = ImageClassifier(NAMES, PREPROCESSING, arch=f"{__name__}.Residual", arch_args=args)
        network = model.network
        assert isinstance(network, Residual)
        dropped = network.drop(torch.ones(4000, 1, 1, 1))
        return float((dropped > 0).float().mean())

    assert kept() == 1
    assert kept(drop=0.3) == pytest.approx(0.7, abs=0.03)
