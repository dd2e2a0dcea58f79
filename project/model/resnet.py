"""ResNets by name: torchvision's, with the stem for large pictures or for small ones, and ResNet-9 for small ones."""

from difflib import get_close_matches
from typing import Literal, cast

from torch import Tensor, nn
from torchvision.models import get_model, list_models  # type: ignore[attr-defined]  # not in its __all__
from torchvision.models.resnet import ResNet

from project.errors import UserError

Stem = Literal["imagenet", "cifar"]


_RESNET9_WIDTHS = {"resnet9": 64, "resnet9_slim": 32}


class ResNet9(nn.Module):
    """A shallow ResNet for pictures of about 32 pixels, made to train fast.

    After Page, 2018, https://myrtle.ai/learn/how-to-train-your-resnet.

    Args:
        num_classes: The width of the head.
        width: Channels of the first convolution; the last has eight times as many.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = _convolution(3, width)
        self.layer1 = nn.Sequential(_convolution(width, 2 * width, nn.MaxPool2d(2)), _Residual(2 * width))
        self.layer2 = _convolution(2 * width, 4 * width, nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(_convolution(4 * width, 8 * width, nn.MaxPool2d(2)), _Residual(8 * width))
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classifies.

        Args:
            x: float (N, 3, height, width).

        Returns:
            Logits, float (N, classes); an eighth of the head's, which keeps them small at the start.
        """
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(x.amax((2, 3))) / 8
        return logits


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.branch(x))


def _convolution(channels: int, width: int, *pool: nn.Module) -> nn.Sequential:
    """Pools at once, which leaves less to normalise."""
    convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(convolution, *pool, nn.BatchNorm2d(width), nn.ReLU(inplace=True))


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
            pictures of about 32 pixels. ResNet-9 has no other.

    Raises:
        UserError: No ResNet has that name, or it has no such stem.
    """
    if arch not in resnet_names():
        longer = [name for name in resnet_names() if name.startswith(arch)]
        nearest = longer or get_close_matches(arch, resnet_names(), n=3) or resnet_names()
        raise UserError(f"--model.arch: there is no ResNet '{arch}'; did you mean {', '.join(nearest)}?")
    if arch in _RESNET9_WIDTHS:
        if stem != "cifar":
            raise UserError(f"--model.arch {arch} is made for small pictures; use it with --model.stem cifar")
        return ResNet9(num_classes, _RESNET9_WIDTHS[arch])
    network = cast(ResNet, get_model(arch, weights=None, num_classes=num_classes))
    if stem == "cifar":
        network.conv1 = nn.Conv2d(3, network.conv1.out_channels, kernel_size=3, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()  # type: ignore[assignment]  # any module will do
    return network
