"""The command hands further arguments to what builds the network, and a checkpoint remembers them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from project.engine.errors import UserError
from project.model import ImageClassifier
from project.model.networks import build_network
from tests.conftest import QUIET, TINY_DATA, TINY_TRAINER, evaluate, fit
from tests.engine.cli.test_given import parse
from tests.model.test_classifier import NAMES, PREPROCESSING
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


def test_stochastic_depth_of_torchvision_grows_with_depth_to_what_is_asked():
    with torch.device("meta"):
        network = build_network("efficientnet_b0", 3, arch_args={"stochastic_depth_prob": 0.48})
    rates = [layer.p for layer in network.modules() if isinstance(layer, StochasticDepth)]
    assert rates == pytest.approx([0.48 * depth / 16 for depth in range(16)])  # Huang et al., 2016, equation 4


def test_stochastic_depth_of_timm_does_too():
    pytest.importorskip("timm")
    with torch.device("meta"):
        network = build_network("timm/resnet18", 3, arch_args={"drop_path_rate": 0.7})
    rates = [layer.drop_prob for layer in network.modules() if type(layer).__name__ == "DropPath"]
    assert rates == pytest.approx([0.7 * depth / 7 for depth in range(1, 8)])  # of 8 blocks, the first is never dropped


def wide(num_classes: int, width: int = 2) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.Linear(width, num_classes))


def test_arguments_reach_a_callable_of_ones_own():
    network: Any = build_network(f"{__name__}.wide", 3, arch_args={"width": 5})
    assert network[1].out_features == 5


@pytest.mark.parametrize(
    ("arch", "args", "answer"),
    [
        (
            "resnet18",
            {"stochastic_depth_prob": 0.1},
            r"resnet18 does not take stochastic_depth_prob=0\.1 \(.*unexpected",
        ),
        ("resnet18", {"weights": "DEFAULT"}, r"does not take weights='DEFAULT' \(.*multiple values"),
        ("googlenet", {"aux_logits": True}, r"does not take aux_logits=True \(.*multiple values"),
        ("resnet18", {"num_classes": 7}, r"does not take num_classes=7 \(.*multiple values"),
        ("resnet18", {"groups": "x\n"}, r"--model\.arch_args: resnet18 does not take groups='x\\n' \("),
        ("timm/resnet18", {"drop_rates": 0.1}, r"timm/resnet18 does not take drop_rates=0\.1 \(.*unexpected"),
        ("timm/resnet18", {"pretrained": True}, r"does not take pretrained=True \(.*multiple values"),
        ("timm/resnet18", {"checkpoint_path": "x.pth"}, r"does not take checkpoint_path='x\.pth' \(.*multiple values"),
        (f"{__name__}.wide", {"depth": 3}, r"wide' fails with num_classes=3, depth=3 \(TypeError: .*unexpected"),
    ],
)
def test_an_argument_that_a_network_does_not_take_is_an_error_of_one_line(arch, args, answer):
    if arch.startswith("timm/"):
        pytest.importorskip("timm")
    with pytest.raises(UserError, match=answer) as refused:
        build_network(arch, 3, arch_args=args)
    assert "\n" not in str(refused.value)


def test_our_networks_take_their_own_arguments_alone():
    network: Any = build_network("resnet9", 3, {"width": 16})
    assert network.fc.in_features == 8 * 16
    with pytest.raises(UserError, match=r"airbench does not take depth=3 \(.*depth"):
        build_network("airbench", 3, {"depth": 3})


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
