"""ResNets by name: torchvision's, with the stem for large images or for small ones, and ResNet-9 for small ones."""

from difflib import get_close_matches
from typing import Literal, cast

from torch import nn
from torchvision.models import get_model, list_models  # type: ignore[attr-defined]  # not in its __all__
from torchvision.models.resnet import ResNet

from project.errors import UserError
from project.model.resnet9 import ResNet9

Stem = Literal["imagenet", "cifar"]


_RESNET9_WIDTHS = {"resnet9": 64, "resnet9_slim": 32}


def resnet_names() -> list[str]:
    """The names that :func:`build_resnet` knows."""
    return [*_RESNET9_WIDTHS, *list_models(include=["resnet*", "resnext*", "wide_resnet*"])]


def build_resnet(arch: str, num_classes: int, stem: Stem = "imagenet") -> nn.Module:
    """Builds a ResNet with fresh weights.

    Args:
        arch: A ResNet of torchvision: ``resnet18`` … ``resnet152``, ``resnext…``, ``wide_resnet…``; or ``resnet9`` and,
            half as wide, ``resnet9_slim``.
        num_classes: The width of the head.
        stem: ``imagenet`` is torchvision's own, a 7x7 convolution of stride 2 and a 3x3 pool; ``cifar`` is one 3x3
            convolution of stride 1 and no pool (He et al., 2016, section 4.2, https://arxiv.org/abs/1512.03385), for
            images of about 32 pixels. ResNet-9 has no other.

    Raises:
        UserError: No ResNet has that name, or it has no such stem.
    """
    if arch not in resnet_names():
        longer = [name for name in resnet_names() if name.startswith(arch)]
        nearest = longer or get_close_matches(arch, resnet_names(), n=3) or resnet_names()
        raise UserError(f"--model.arch: there is no ResNet '{arch}'; did you mean {', '.join(nearest)}?")
    if arch in _RESNET9_WIDTHS:
        if stem != "cifar":
            raise UserError(f"--model.arch {arch} is made for small images; use it with --model.stem cifar")
        return ResNet9(num_classes, _RESNET9_WIDTHS[arch])
    network = cast(ResNet, get_model(arch, weights=None, num_classes=num_classes))
    if stem == "cifar":
        network.conv1 = nn.Conv2d(3, network.conv1.out_channels, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()  # type: ignore[assignment]  # any module will do
    return network
