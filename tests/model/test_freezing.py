"""The blocks of any network: in the order in which they compute, with learning rates of their own, and frozen."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from timm.optim import param_groups_layer_decay  # type: ignore[attr-defined]  # not in its __all__
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LinearLR, OneCycleLR

from project.engine.errors import UserError
from project.model import CosineWithWarmup, ImageClassifier, Muon
from project.model.freezing import block_name, blocks, freeze_layers
from project.model.networks import build_network, head
from project.model.optimizers import build_optimizer
from project.model.schedules import build_schedule
from tests.conftest import cases
from tests.model.test_classifier import classifier, linear, trainer
from tests.stress import SmallNetwork

NETWORKS = {  # how many blocks, counted by eye: the stem, residual blocks or layers, the head
    "resnet18": 1 + 8 + 1,
    "convnext_tiny": 1 + 18 + 3 + 1,
    "mobilenet_v3_small": 1 + 11 + 1 + 2,
    "vit_b_32": 1 + 12 + 1,
    "squeezenet1_1": 1 + 8 + 1,
}


def order_of_use(network: nn.Module, side: int) -> list[str]:
    """The names of parameters in the order in which the network's layers compute."""
    names = {module: name for name, module in network.named_modules()}
    used: list[str] = []

    def note(module: nn.Module, _) -> None:
        if not any(True for _ in module.children()):
            used.extend(f"{names[module]}.{own}" for own, _ in module.named_parameters())

    with register_module_forward_pre_hook(note), torch.inference_mode():
        network.eval()(torch.zeros(1, 3, side, side, device=next(network.parameters()).device))
    return used


@pytest.mark.parametrize("arch", NETWORKS)
def test_each_parameter_is_in_one_block_and_blocks_compute_one_after_the_other(arch):
    with torch.device("meta"):  # shapes are all that it takes
        network = build_network(arch, 3)
    listed = blocks(network)
    assert len(listed) == NETWORKS[arch]
    assert sorted(name for names in listed for name in names) == sorted(name for name, _ in network.named_parameters())
    depth = {name: number for number, names in enumerate(listed) for name in names}
    used = [depth[name] for name in order_of_use(network, 224 if "vit" in arch else 64)]
    assert used == sorted(used)
    assert {f"{name}.weight" for name in head(network, 3)} <= set(listed[-1])


def test_a_network_of_the_users_has_blocks_of_a_layer_and_its_normalisation():
    first, second = ([f"conv{n}.weight", f"bn{n}.weight", f"bn{n}.bias"] for n in (1, 2))
    assert blocks(SmallNetwork(3)) == [first, second, ["fc.weight", "fc.bias"]]
    assert blocks(nn.BatchNorm1d(3)) == [["weight", "bias"]]


@pytest.mark.parametrize("layer_decay", [0.7, 1.0])
@pytest.mark.parametrize("arch", ["tf_efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto", "levit_128s"])
def test_rates_and_weight_decay_are_those_of_timm_for_its_networks(arch, layer_decay):
    network: Any = build_network(f"timm/{arch}", 3)
    next(network.parameters()).requires_grad_(False)
    named = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs = param_groups_layer_decay(network, 0.1, named, layer_decay=layer_decay)
    model: Any = SimpleNamespace(network=network, parameters=network.parameters)
    ours = build_optimizer(partial(SGD, lr=1.0, weight_decay=0.1), model, layer_decay).param_groups
    expected = {p: (group.get("lr_scale", 1.0), group["weight_decay"]) for group in theirs for p in group["params"]}
    assert {p: (group["lr"], group["weight_decay"]) for group in ours for p in group["params"]} == expected
    assert len(expected) == len(list(network.parameters())) - 1


@cases("optimizer layer_decay", (partial(AdamW, lr=0.1), 0.5), (partial(Muon, lr=0.1, adam_lr=0.01), 1.0))
def test_a_schedule_that_makes_all_rates_the_same_is_refused_and_one_that_scales_them_is_not(optimizer, layer_decay):
    model, run = linear(), trainer(max_epochs=1)
    model.network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 3))
    built = build_optimizer(optimizer, model, layer_decay)
    for make in (CosineWithWarmup, partial(LinearLR, start_factor=0.1)):
        build_schedule(make, built, run, "epoch")
    with pytest.raises(UserError, match="all layers the same learning rate"):
        build_schedule(partial(OneCycleLR, max_lr=0.1, total_steps=9, cycle_momentum=False), built, run, None)


@pytest.mark.parametrize("arch", ["resnet18", "maxvit_t", "timm/efficientvit_b0", "timm/twins_svt_small"])
def test_every_name_that_is_offered_freezes_all_before_its_block(arch):
    with torch.device("meta"):
        network = build_network(arch, 3)
    listed = blocks(network)
    for number in range(1, len(listed)):
        network.requires_grad_(True)
        freeze_layers(network, block_name(listed, number), 3)
        frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
        assert frozen == {name for names in listed[:number] for name in names}


class Net(nn.Module):
    """A network of the user's, which knows nothing of the project."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4, affine=False), nn.Dropout(0.5))
        self.more = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(0.5))
        self.last = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.last(self.more(self.body(x)).mean((2, 3)))


@cases(
    "arch freeze side",
    ("mobilenet_v3_small", "backbone", 64),
    ("timm/levit_128s", "backbone", 224),  # has two heads
    (f"{__name__}.Net", "more", 64),
    ("resnet18", "layer4", 64),
)
def test_what_is_frozen_stays_as_it_is_with_its_statistics_and_all_else_is_trained(arch, freeze, side):
    preprocessing: Any = {"resize": side, "crop": side, "mean": [0.5] * 3, "std": [0.25] * 3}
    model = ImageClassifier(["a", "b", "c"], preprocessing, arch=arch, freeze=freeze)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.ones_(parameter)  # timm's zeros would keep a gradient from what is before
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    optimizer = SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)
    modes = [module.training for module in model.network.modules()]
    model.eval()
    assert not any(module.training for module in model.modules())
    model.train()
    assert modes == [module.training for module in model.network.modules()]
    images = torch.randint(0, 256, (4, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    model(images).square().sum().backward()
    optimizer.step()
    trained = tuple(head(model.network, 3)) if freeze == "backbone" else (freeze, "fc", "last")
    for name, value in model.network.state_dict().items():
        is_trained = name.startswith(trained)
        assert torch.equal(before[name], value) != is_trained or ("bias" in name and is_trained)
    if freeze == "more":
        network: Any = model.network
        assert [layer.training for layer in (*network.body, *network.more)] == [False] * 3 + [True] * 2


def test_a_block_that_there_is_not_is_answered_with_those_that_there_are():
    for name in ("layer5", "conv1"):  # before which there is none
        with pytest.raises(UserError, match=rf"is called '{name}'; there are layer1\.0, .* fc, and backbone$"):
            classifier(arch="resnet18", freeze=name)
