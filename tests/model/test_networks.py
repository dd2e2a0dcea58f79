import sys
from copy import deepcopy
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models import list_models  # type: ignore[attr-defined]  # not in its __all__
from torchvision.models.regnet import BlockParams

from project.engine.errors import UserError
from project.model.layout import settle
from project.model.networks import build_network, head, imported_arch, network_names

SOME = ["resnet18", "resnet34", "resnet50", "resnext50_32x4d", "wide_resnet50_2"]


def built(*args, **kwargs) -> Any:
    return build_network(*args, **kwargs)


def shapes_at_layer1(network, side):
    """What goes into the first residual stage, for images of that side."""
    seen = []
    hook = network.layer1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    network(torch.empty(2, 3, side, side, device="meta"))
    hook.remove()
    return tuple(seen[0])


@pytest.mark.parametrize("arch", SOME)
def test_with_the_imagenet_stem_it_is_torchvisions_network(arch):
    ours, theirs = build_network(arch, 7), getattr(torchvision.models, arch)(num_classes=7)
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(ours.eval()(images), theirs.eval()(images))


TORCHVISIONS = list_models(module=torchvision.models)
FAMILIES = [  # one of each, the smallest, for what takes time
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3"),
    *("mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1"),
    *("swin_t", "vit_b_32"),
]
TIMMS = [
    "hrnet_w18_small",
    "vit_tiny_patch16_224",
    "efficientvit_b0",
    "caformer_s18",
    "levit_128s",
    "tf_efficientnet_lite0",
]


@pytest.fixture
def regnets_on_the_meta_device(monkeypatch):
    """Lets torchvision's RegNet do its sums about widths where there are numbers."""
    made = BlockParams.from_init_params

    def on_the_cpu(**kwargs):
        with torch.device("cpu"):
            return made(**kwargs)

    monkeypatch.setattr(BlockParams, "from_init_params", on_the_cpu)


@pytest.mark.parametrize(
    "arch", [arch if arch in FAMILIES else pytest.param(arch, marks=pytest.mark.slow) for arch in TORCHVISIONS]
)
def test_the_head_of_every_network_of_torchvision_is_what_depends_on_the_number_of_classes(
    arch, regnets_on_the_meta_device
):
    with torch.device("meta"):
        few, many = built(arch, 11), built(arch, 13)
    shapes = [{name: value.shape for name, value in network.state_dict().items()} for network in (few, many)]
    differing = {name for name in shapes[0] if shapes[0][name] != shapes[1][name]}
    ((name, layer),) = head(few, 11).items()
    assert differing == {f"{name}.{inner}" for inner, _ in layer.named_parameters()}
    assert all(value.shape[0] == 11 for value in layer.parameters())


@pytest.mark.parametrize("arch", TIMMS)
def test_the_head_of_a_network_of_timm_is_what_timm_says(arch):
    pytest.importorskip("timm")
    with torch.device("meta"):
        few, many = built(f"timm/{arch}", 11), built(f"timm/{arch}", 13)
    differing = {name for name, value in few.state_dict().items() if value.shape != many.state_dict()[name].shape}
    found = tuple(f"{name}." for name in head(few, 11))
    assert differing
    assert all(name.startswith(found) for name in differing)
    assert sum(value.numel() for layer in head(few, 11).values() for value in layer.parameters()) < sum(
        value.numel() for value in few.parameters()
    )


@pytest.mark.parametrize("arch", FAMILIES)
def test_a_network_of_every_family_computes_the_same_in_either_layout(arch):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = built(arch, 5)
    networks = [network, deepcopy(network)]
    side = 75 if arch == "inception_v3" else 224 if arch in ("swin_t", "maxvit_t", "vit_b_32") else 64
    for network, channels_last in zip(networks, (False, True), strict=True):
        assert settle(network, arch, 5, side, channels_last) is LAYOUTS[channels_last]
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain = networks[0].eval()(images)
        other = networks[1].eval()(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(other, plain, rtol=1e-3, atol=1e-4)


LAYOUTS = [torch.contiguous_format, torch.channels_last]


class Tiny(nn.Module):
    """Flattens by a view, which takes one layout alone, and learns its width from the first images."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2)
        self.volume = nn.Conv3d(1, 1, 1)  # of five dimensions, for which there is no channels_last
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.LazyLinear(num_classes)
        self.unused = nn.Linear(2, 3)

    def forward(self, x):
        x = self.norm(self.convolution(x)) + 0 * self.volume.weight.sum()
        return self.head(x.view(len(x), -1))


def test_a_network_that_takes_one_layout_alone_gets_that_and_lazy_layers_their_shapes():
    network = Tiny(5)
    network.norm.eval()
    assert settle(network, "Tiny", 5, 16, channels_last=True) is torch.contiguous_format
    assert network.head.weight.shape == (5, 4 * 7 * 7)
    assert network.training
    assert not network.norm.training
    assert network.norm.num_batches_tracked == 0
    assert list(head(network, 5)) == ["head"]


def not_a_network(num_classes):
    return num_classes


def failing(num_classes):
    raise RuntimeError("no such luck. Never.")


def of_other_width(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes + 1))


def returning_a_pair(num_classes):
    network = Tiny(num_classes)
    network.forward = lambda x: (x, x)  # type: ignore[method-assign]
    return network


@pytest.mark.parametrize(
    ("arch", "complaint"),
    [
        ("no_such_package.Net", r"cannot be imported \(No module named 'no_such_package'\)"),
        (f"{__name__}.NoSuchNet", "cannot be imported .*NoSuchNet"),
        (f"{__name__}.built", "must have a parameter num_classes"),
        (f"{__name__}.not_a_network", r"must return a torch\.nn\.Module, got int"),
        (f"{__name__}.failing", r"fails with num_classes=5 \(RuntimeError: no such luck\)"),
        (f"{__name__}.of_other_width", r"must return logits of the shape \(2, 5\).*got a shape of \(2, 6\)"),
        (f"{__name__}.returning_a_pair", "got tuple"),
        ("inception_v3", r"inception_v3 cannot take images of 8 pixels \(.*\); choose another --data\.image_size"),
        ("vit_b_32", "vit_b_32 cannot take images of 8 pixels .*224"),
        ("timm/resnet17", "timm has no network 'resnet17'; did you mean .*timm/resnet18"),
        ("timm/resnet18.a1_in1k", "name the weights apart: timm/resnet18 --model.weights a1_in1k"),
        ("timm/hf_hub:someone/evil", "timm has no network"),
    ],
)
def test_a_network_that_cannot_be_used_is_an_error_of_one_line(arch, complaint):
    with pytest.raises(UserError, match=complaint) as error:
        settle(built(arch, 5), arch, 5, 8, channels_last=True)
    assert "\n" not in str(error.value)


def test_without_timm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match="pip install timm"):
        built("timm/resnet18", 5)


def test_a_callable_is_given_the_number_of_classes():
    network = built(f"{__name__}.Tiny", 7)
    assert isinstance(network, Tiny)
    assert network.head.out_features == 7


def test_a_network_without_a_layer_of_that_width_has_no_head():
    with pytest.raises(UserError, match="no linear or convolutional layer with 9 outputs"):
        head(Tiny(5), 9)


def test_a_checkpoint_imports_no_network():
    assert imported_arch("resnet18") == "resnet18"
    assert imported_arch(f"{__name__}.Tiny") == f"{__name__}.Tiny"
    assert imported_arch(f"{__name__}.failing") == f"{__name__}.failing"
    assert imported_arch("of_an_earlier_name.Tiny") == f"{__name__}.Tiny"
    with pytest.raises(UserError, match=r"turtledemo\.NoNetwork, which is not imported here; give --import turtledemo"):
        imported_arch("turtledemo.NoNetwork")
    assert "turtledemo" not in sys.modules


@pytest.mark.parametrize("arch", ["vgg11"])
def test_only_resnets_of_torchvision_have_a_stem_for_small_images(arch):
    with torch.device("meta"), pytest.raises(UserError, match=rf"--model\.arch_args\.stem cifar .*{arch} is none"):
        built(arch, 5, {"stem": "cifar"})


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
@pytest.mark.parametrize("arch", SOME)
def test_a_resnet_has_the_stem_that_it_was_given(arch, stem):
    with torch.device("meta"):
        network = built(arch, 11, {"stem": stem})
    assert network.conv1.stride == {"imagenet": (2, 2), "cifar": (1, 1)}[stem]


def test_the_names_are_torchvisions_and_ours():
    assert set(network_names()) == {*TORCHVISIONS, "airbench", "resnet9", "resnet9_slim"}


@pytest.mark.parametrize(("arch", "width"), [("resnet9", 64), ("resnet9_slim", 32)])
def test_resnet9_has_eight_convolutions_and_a_head(arch, width):
    network = built(arch, 11)
    convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert [layer.out_channels // width for layer in convolutions] == [1, 2, 2, 2, 4, 8, 8, 8]
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 11)


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_the_cifar_stem_keeps_the_resolution_and_imagenets_quarters_it(arch):
    with torch.device("meta"):
        cifar, imagenet = built(arch, 2, {"stem": "cifar"}), built(arch, 2)
    assert shapes_at_layer1(cifar, 32) == (2, 64, 32, 32)
    assert shapes_at_layer1(imagenet, 32) == (2, 64, 8, 8)


def test_the_cifar_stem_is_drawn_as_torchvision_draws_convolutions():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        weight = built("resnet18", 2, {"stem": "cifar"}).conv1.weight
    expected = (2 / (64 * 3 * 3)) ** 0.5  # He et al., 2015, by the outputs
    assert weight.std().item() == pytest.approx(expected, rel=0.1)
    assert weight.mean().abs() < 4 * expected / weight.numel() ** 0.5


def test_beyond_the_stem_and_the_head_nothing_differs():
    def shapes(network):
        return {name: p.shape for name, p in network.state_dict().items() if not name.startswith(("conv1", "fc"))}

    assert shapes(build_network("resnet18", 2, {"stem": "cifar"})) == shapes(build_network("resnet18", 9))


def test_weights_are_fresh():
    first, second = build_network("resnet18", 2), build_network("resnet18", 2)
    assert not torch.equal(first.get_parameter("conv1.weight"), second.get_parameter("conv1.weight"))
    assert isinstance(first, nn.Module)


@pytest.mark.parametrize(
    ("arch", "nearest"),
    [
        ("resnet17", "resnet18"),
        ("ResNet50", "resnet50"),
        ("resnext50_32x8d", "resnext50_32x4d"),
        ("vgg12", "vgg1"),
        ("efficientnet", "efficientnet_b0"),
        ("hrnet_w18", "timm/hrnet_w18"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(arch, nearest):
    with pytest.raises(UserError, match=rf"no network '{arch}'; did you mean .*{nearest}"):
        build_network(arch, 10)


def test_every_kernel_has_the_strides_that_gradients_will_have():
    network = build_network("resnet50", 3)
    settle(network, "resnet50", 3, 64, channels_last=True)
    expected = torchvision.models.resnet50(num_classes=3).to(memory_format=torch.channels_last)
    strides = {name: parameter.stride() for name, parameter in network.named_parameters()}
    assert strides == {name: parameter.stride() for name, parameter in expected.named_parameters()}
