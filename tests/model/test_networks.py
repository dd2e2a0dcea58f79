from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from project.errors import UserError
from project.model.networks import build_resnet, resnet_names

SOME = ["resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet50_2"]


def built(*args, **kwargs) -> Any:
    return build_resnet(*args, **kwargs)


def shapes_at_layer1(network, side):
    """What goes into the first residual stage, for images of that side."""
    seen = []
    hook = network.layer1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    network(torch.empty(2, 3, side, side, device="meta"))
    hook.remove()
    return tuple(seen[0])


@pytest.mark.parametrize("arch", SOME)
def test_with_the_imagenet_stem_it_is_torchvisions_network(arch):
    ours, theirs = build_resnet(arch, 7), getattr(torchvision.models, arch)(num_classes=7)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(ours.eval()(images), theirs.eval()(images))


TORCHVISIONS = [name for name in resnet_names() if not name.startswith("resnet9")]


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("arch", TORCHVISIONS)
def test_every_name_builds_with_a_head_of_the_right_width(arch, stem):
    with torch.device("meta"):
        network = built(arch, 11, stem)
    assert network.fc.out_features == 11
    assert network.conv1.stride == {"imagenet": (2, 2), "cifar": (1, 1)}[stem]


def test_the_names_are_those_of_torchvisions_resnets():
    assert set(SOME) <= set(resnet_names())
    assert all(callable(getattr(torchvision.models, name)) for name in TORCHVISIONS)


@pytest.mark.parametrize(("arch", "width"), [("resnet9", 64), ("resnet9_slim", 32)])
def test_resnet9_has_eight_convolutions_and_a_head(arch, width):
    network = built(arch, 11, "cifar")
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert [layer.out_channels // width for layer in convolutions] == [1, 2, 2, 2, 4, 8, 8, 8]
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 11)


def test_resnet9_has_no_stem_for_large_images():
    with pytest.raises(UserError, match=r"use it with --model\.stem cifar"):
        build_resnet("resnet9", 10, "imagenet")


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_the_cifar_stem_keeps_the_resolution_and_imagenets_quarters_it(arch):
    with torch.device("meta"):
        cifar, imagenet = built(arch, 2, "cifar"), built(arch, 2)
    assert shapes_at_layer1(cifar, 32) == (2, 64, 32, 32)
    assert shapes_at_layer1(imagenet, 32) == (2, 64, 8, 8)


def test_the_cifar_stem_is_drawn_as_torchvision_draws_convolutions():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weight = built("resnet18", 2, "cifar").conv1.weight
    expected = (2 / (64 * 3 * 3)) ** 0.5  # He et al., 2015, by the outputs
    assert weight.std().item() == pytest.approx(expected, rel=0.1)
    assert weight.mean().abs() < 4 * expected / weight.numel() ** 0.5


def test_beyond_the_stem_and_the_head_nothing_differs():
    def shapes(network):
        return {name: p.shape for name, p in network.state_dict().items() if not name.startswith(("conv1", "fc"))}

    assert shapes(build_resnet("resnet18", 2, "cifar")) == shapes(build_resnet("resnet18", 9))


def test_weights_are_fresh():
    first, second = build_resnet("resnet18", 2), build_resnet("resnet18", 2)
    assert not torch.equal(first.get_parameter("conv1.weight"), second.get_parameter("conv1.weight"))
    assert isinstance(first, nn.Module)


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [("resnet17", "resnet18"), ("ResNet50", "resnet50"), ("resnext50_32x8d", "resnext50_32x4d"), ("vgg16", "resnet18")],
)
def test_an_unknown_name_gets_the_nearest_ones(arch, nearest):
    with pytest.raises(UserError, match=rf"no ResNet '{arch}'; did you mean .*{nearest}"):
        build_resnet(arch, 10)
