"""The blocks of any network: in the order in which they compute, with learning rates of their own, and frozen."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from project.engine.errors import UserError
from project.model.freezing import Freezing, block_name, blocks
from project.model.networks import build_network, head
from project.model.optimizers import parameter_groups
from tests.model.test_networks import meta  # noqa: F401  # a fixture
from tests.stress import SmallNetwork

NETWORKS = {  # how many blocks, counted by eye: the stem, residual blocks or layers, the head
    "resnet18": 1 + 8 + 1,
    "convnext_tiny": 1 + 18 + 3 + 1,
    "efficientnet_b0": 1 + 16 + 1 + 1,
    "mobilenet_v3_small": 1 + 11 + 1 + 2,
    "vit_b_32": 1 + 12 + 1,
    "squeezenet1_1": 1 + 8 + 1,
    "alexnet": 5 + 3,
}
MORE = ["maxvit_t", "regnet_y_400mf", "shufflenet_v2_x0_5", "densenet121", "googlenet", "airbench", "resnet9"]
TIMMS = ["efficientvit_b0", "twins_svt_small", "crossvit_tiny_240", "levit_128s", "convnext_atto", "mixnet_s"]


def order_of_use(network: nn.Module, side: int) -> list[str]:
    """The names of parameters in the order in which the network's layers compute."""
    used: list[str] = []

    def note(name: str) -> Any:
        def before(module: nn.Module, _: Any) -> None:
            used.extend(f"{name}.{own}" for own, _ in module.named_parameters(recurse=False))

        return before

    for name, module in network.named_modules():
        if not any(True for _ in module.children()):
            module.register_forward_pre_hook(note(name))
    with torch.inference_mode():
        network.eval()(torch.zeros(1, 3, side, side))
    return used


@pytest.mark.parametrize("arch", NETWORKS)
@pytest.mark.usefixtures("meta")  # shapes are all that it takes
def test_each_parameter_is_in_one_block_and_blocks_compute_one_after_the_other(arch):
    network = build_network(arch, 3)
    found = blocks(network)
    assert len(found) == NETWORKS[arch]
    depth = {name: number for number, names in enumerate(found) for name in names}
    used = [depth[name] for name in order_of_use(network, 224 if "vit" in arch else 64)]
    assert used == sorted(used)
    assert {f"{name}.weight" for name in head(network, 3)} <= set(found[-1])


@pytest.mark.parametrize("arch", [*NETWORKS, *MORE, *(f"timm/{arch}" for arch in TIMMS)])
@pytest.mark.usefixtures("meta")
def test_every_block_is_offered_by_a_name_that_finds_it(arch):
    network = build_network(arch, 3)
    found = blocks(network)
    every = [name for name, _ in network.named_parameters()]
    assert sorted(name for names in found for name in names) == sorted(every)
    for number in range(1, len(found)):
        network.requires_grad_(True)
        Freezing(block_name(found, number), 3).freeze(network)
        frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
        assert frozen == {name for names in found[:number] for name in names}


def test_a_network_of_the_users_has_blocks_of_a_layer_and_its_normalisation():
    assert blocks(SmallNetwork(3)) == [
        ["conv1.weight", "bn1.weight", "bn1.bias"],
        ["conv2.weight", "bn2.weight", "bn2.bias"],
        ["fc.weight", "fc.bias"],
    ]
    assert blocks(nn.BatchNorm1d(3)) == [["weight", "bias"]]


@pytest.mark.parametrize("arch", ["tf_efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto", "levit_128s"])
def test_rates_are_those_of_timm_for_its_networks(arch):
    from timm.optim import param_groups_layer_decay  # type: ignore[attr-defined]  # not in its __all__

    network: Any = build_network(f"timm/{arch}", 3)
    named = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs = param_groups_layer_decay(network, 0.1, named, layer_decay=0.7)
    found, expected = (
        {
            parameter: (group["lr_scale"], group.get("weight_decay", 0.1))
            for group in groups
            for parameter in group["params"]
        }
        for groups in (parameter_groups(network, 0.7), theirs)
    )
    assert found.keys() == expected.keys() == set(network.parameters())
    for parameter, settings in found.items():
        assert settings == pytest.approx(expected[parameter])


def test_the_rates_of_a_resnet_fall_from_head_to_stem_as_a_plain_loop_says():
    network = build_network("resnet18", 3)
    expected = {}
    rate = 1.0
    for start in [("fc",), *((f"layer{i}.{j}",) for i in (4, 3, 2, 1) for j in (1, 0)), ("conv1", "bn1")]:
        for name, parameter in network.named_parameters():
            if name.startswith(start):
                expected[parameter] = rate
        rate *= 0.5
    groups = parameter_groups(network, 0.5)
    assert {parameter: group["lr_scale"] for group in groups for parameter in group["params"]} == expected


class Net(nn.Module):
    """A network of the user's, which knows nothing of the project."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.last(self.body(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("arch", "freeze"),
    [
        (f"{__name__}.Net", "backbone"),
        ("mobilenet_v3_small", "backbone"),
        ("squeezenet1_1", "backbone"),
        ("timm/levit_128s", "backbone"),  # of two heads
        ("resnet18", "layer4"),
        ("timm/resnet18", "layer4.1"),
    ],
)
def test_frozen_layers_stay_as_they_are_with_their_statistics_and_all_others_change(arch, freeze):
    network = build_network(arch, 3)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            nn.init.ones_(parameter)  # timm's zeros would keep a gradient from layers before them
    freezing = Freezing(freeze, 3)
    freezing.freeze(network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    freezing.evaluate(network.eval().train())
    size = 224 if "levit" in arch else 64
    network(torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    SGD([parameter for parameter in network.parameters() if parameter.requires_grad], lr=0.1).step()
    changed = {name for name, value in network.state_dict().items() if not torch.equal(before[name], value)}
    names = list(before)
    first = next((number for number, name in enumerate(names) if name.startswith(freeze)), 0)
    heads = tuple(f"{name}." for name in head(network, 3))
    trained = {name for name in names if name.startswith(heads)} if freeze == "backbone" else set(names[first:])
    assert changed <= trained
    assert all("bias" in name or "num_batches" in name for name in trained - changed)


def test_layers_without_parameters_before_a_block_drop_nothing_out_and_count_no_statistics():
    before: list[nn.Module] = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Dropout()]
    network = nn.Sequential(*before, nn.Conv2d(4, 4, 3), nn.Dropout())
    freezing = Freezing("3", 3)
    freezing.freeze(network)
    freezing.evaluate(network.train())
    assert [module.training for module in network] == [False] * len(before) + [True, True]


@pytest.mark.parametrize("name", ["layer5", "conv1"])  # before the latter there is none
def test_a_block_that_there_is_not_is_answered_with_those_that_there_are(name):
    with pytest.raises(
        UserError, match=rf"no block after the first is called '{name}'; there are layer1\.0, .* and fc"
    ):
        Freezing(name, 3).freeze(build_network("resnet18", 3))
