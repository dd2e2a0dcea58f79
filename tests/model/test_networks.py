"""Networks by name: torchvision's, timm's, ours and any callable; heads, blocks that freeze, memory formats."""

from typing import Any

import pytest
import torch
import torchvision
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import SGD
from torchvision.models import list_models  # type: ignore[attr-defined]  # not in its __all__

from project.model import ImageClassifier
from project.model.freezing import blocks
from project.model.networks import build_network, head, prepare_network
from tests.conftest import cases
from tests.model.test_classifier import make_images

SMALLEST = [  # of each family, for what takes time
    *(
        "alexnet",
        "convnext_tiny",
        "densenet121",
        "efficientnet_b0",
        "googlenet",
        "inception_v3",
        "mnasnet0_5",
    ),
    *(
        "mobilenet_v3_small",
        "regnet_y_400mf",
        "resnet18",
        "shufflenet_v2_x0_5",
        "squeezenet1_1",
        "swin_t",
        "vit_b_32",
    ),
]
TIMMS = [
    "hrnet_w18_small",
    "vit_tiny_patch16_224",
    "efficientvit_b0",
    "levit_128s",
    "tf_efficientnet_lite0",
]
SLOW, OTHERS = pytest.mark.slow, sorted({*list_models(module=torchvision.models)} - {*SMALLEST})


@cases(
    "arch",
    *SMALLEST,
    *(f"timm/{arch}" for arch in TIMMS),
    *(pytest.param(arch, marks=SLOW) for arch in OTHERS),
)
def test_the_head_of_a_network_is_what_depends_on_the_number_of_classes(arch):
    with torch.device("cpu" if "regnet" in arch else "meta"):  # RegNets compute their widths
        few, many = build_network(arch, 11), build_network(arch, 13)
    others = many.state_dict()
    differing = {
        name for name, value in few.state_dict().items() if value.shape != others[name].shape
    }
    found = {
        f"{name}.{inner}"
        for name, layer in head(few, 11).items()
        for inner, _ in layer.named_parameters()
    }
    assert differing
    assert (
        differing <= found if arch.startswith("timm/") else differing == found
    )  # timm's may have a norm


def of_size(crop: int) -> Preprocessing:
    return Preprocessing(resize=crop, crop=crop, mean=[0.5] * 3, std=[0.25] * 3)


class Tiny(nn.Module):
    """Flattens by a view, which takes one memory format alone, and learns its width from the first images."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.LazyLinear(num_classes)
        self.cube = nn.Conv3d(1, 1, 1)  # whose weight has neither format

    def forward(self, x: Tensor):
        return self.head(self.norm(self.convolution(x)).view(len(x), -1))


def test_a_network_that_takes_one_memory_format_alone_gets_that_and_lazy_layers_their_shapes():
    network: Any = build_network(f"{__name__}.Tiny", 5)
    assert prepare_network(network, "Tiny", 5, of_size(16)) == "contiguous_format"
    assert network.head.weight.shape == (5, 4 * 7 * 7)
    assert (network.training, network.norm.num_batches_tracked) == (True, 0)
    assert list(head(network, 5)) == ["head"]
    half = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten()).bfloat16()
    assert prepare_network(half, "half", 5, of_size(8)) == "channels_last"
    with pytest.raises(UserError, match="no linear or convolutional layer with 9 outputs"):
        head(network, 9)


def of_other_width(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes + 1))


def failing(num_classes, fail_later=False):
    if fail_later:
        return nn.Linear(3, num_classes)  # does not take images
    raise RuntimeError("a bug of the user's")


@cases(
    "arch args complaint",
    (f"{__name__}.Tinny", {}, f"there is no network '{__name__}.Tinny'"),
    (f"{__name__}.failing", {"depth": 3}, r"failing does not accept .*'depth': 3} \(.*unexpected"),
    (
        f"{__name__}.of_other_width",
        {},
        r"must return logits of shape \(2, 5\), got \(2, 6\)",
    ),
    (
        "inception_v3",
        {},
        r"does not accept images of 8 pixels; choose another --data\.image_size .* \(Given input",
    ),
    ("a:b", {}, "there is no network 'a:b'; name your own with its module, as in my_module.MyNet"),
    (f"{__name__}.failin", {}, rf"no network .*; did you mean {__name__}\.failing"),
    ("efficientnet", {}, "there is no network 'efficientnet'; did you mean efficientnet_b"),
    ("hrnet_w18", {}, "did you mean .*timm/hrnet_w18"),
    ("timm/resnet17", {}, "there is no network 'timm/resnet17'; did you mean .*timm/resnet18"),
    ("timm/resnet18.a1_in1k", {}, "name the weights apart: timm/resnet18 --model.weights a1_in1k"),
    (
        "resnet18",
        {"groups": "x\n"},
        r"--model\.arch_args: resnet18 does not accept .*'groups': 'x\\n'} \(",
    ),
    (
        "squeezenet1_1",
        {"stem": "cifar"},
        "only torchvision's ResNets have a stem, imagenet or cifar",
    ),
    ("resnet9", {"depth": 3}, r"resnet9 does not accept .*'depth': 3} \(.*depth"),
    (
        "timm/resnet18",
        {"checkpoint_path": "x.pth"},
        r"'checkpoint_path': 'x\.pth'} \(.*multiple values",
    ),
)
def test_a_network_that_cannot_be_used_is_an_error_of_one_line(arch, args, complaint):
    with pytest.raises(UserError, match=complaint) as error:
        prepare_network(build_network(arch, 5, args), arch, 5, of_size(8))
    assert "\n" not in str(error.value)


def test_a_bug_in_a_network_of_the_users_keeps_its_traceback():
    arch = f"{__name__}.failing"
    with pytest.raises(RuntimeError, match="a bug of the user's"):
        build_network(arch, 5)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        prepare_network(build_network(arch, 5, {"fail_later": True}), arch, 5, of_size(8))


def test_the_cifar_stem_keeps_the_resolution_and_is_drawn_as_torchvision_draws_convolutions():
    network: Any = build_network("resnet18", 2, {"stem": "cifar"})
    assert network.maxpool(network.conv1(torch.empty(2, 3, 32, 32))).shape == (2, 64, 32, 32)
    weight = network.conv1.weight
    assert weight.std().item() == pytest.approx(
        (2 / weight[:, 0].numel()) ** 0.5, rel=0.1
    )  # He et al., 2015


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


@cases(
    "arch count",  # how many blocks, counted by eye: the stem, residual blocks or layers, the head
    ("resnet18", 1 + 8 + 1),
    ("convnext_tiny", 1 + 18 + 3 + 1),
    ("mobilenet_v3_small", 1 + 11 + 1 + 2),
    ("vit_b_32", 1 + 12 + 1),
    ("squeezenet1_1", 1 + 8 + 1),
)
def test_each_parameter_is_in_one_block_and_blocks_compute_one_after_the_other(arch, count):
    with torch.device("meta"):  # shapes are all that it takes
        listed = blocks(network := build_network(arch, 3))
    assert len(listed) == count
    assert sorted(name for names in listed for name in names) == sorted(
        name for name, _ in network.named_parameters()
    )
    depth = {name: number for number, names in enumerate(listed) for name in names}
    used = [depth[name] for name in order_of_use(network, 224 if "vit" in arch else 64)]
    assert used == sorted(used)
    assert {f"{name}.weight" for name in head(network, 3)} <= set(listed[-1])


@cases(
    "arch freeze side",
    ("mobilenet_v3_small", "backbone", 64),
    ("timm/levit_128s", "backbone", 224),  # has two heads
    ("tests.conftest.SmallNetwork", "conv2", 64),
    ("resnet18", "layer4", 64),
)
def test_what_is_frozen_stays_as_it_is_with_its_statistics_and_all_else_is_trained(
    arch, freeze, side
):
    with pytest.raises(UserError, match="no block after the first is called 'conv'; there are"):
        ImageClassifier(["a", "b", "c"], of_size(side), arch=arch, freeze="conv")
    model = ImageClassifier(["a", "b", "c"], of_size(side), arch=arch, freeze=freeze)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            nn.init.ones_(parameter)  # timm's zeros would keep a gradient from what is before
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    optimizer = SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1
    )
    model.eval().train()
    model(make_images(4, side)).square().sum().backward()
    optimizer.step()
    trained = tuple(head(model.network, 3)) if freeze == "backbone" else (freeze, "bn2", "fc")
    for name, value in model.network.state_dict().items():
        is_trained = name.startswith(trained)
        assert torch.equal(before[name], value) != is_trained or ("bias" in name and is_trained)
    if freeze == "conv2":  # dropout comes behind it
        assert [layer.training for layer in model.network.children()] == [False] * 3 + [True] * 7
