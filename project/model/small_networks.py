"""Our own networks for small images: airbench, which begins by whitening patches of its images, and ResNet-9."""

from collections.abc import Callable
from typing import Any, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 5e-4  # keeps directions in which patches hardly differ from being blown up


class Airbench(nn.Module):
    """A whitening layer, three groups of convolutions, and a head; for images of about 32 pixels.

    After Jordan, 2024, https://arxiv.org/abs/2404.00498: each convolution begins as nearly the identity, and scales of
    BatchNorm are not trained.

    Args:
        num_classes: The width of the head.
        widths: The channels of each group of two convolutions.
        residual: Adds a third convolution to each group, and a residual connection around its last two.
    """

    def __init__(
        self,
        num_classes: int,
        widths: tuple[int, int, int] = (64, 256, 256),
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(WhiteningConv2d(3, 2), nn.GELU())
        self.layer1 = _group(24, widths[0], residual)
        self.layer2 = _group(widths[0], widths[1], residual)
        self.layer3 = _group(widths[1], widths[2], residual)
        self.fc = nn.Linear(widths[2], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, a ninth of the head's, which keeps them small at the start."""
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(x.amax((2, 3))) / 9
        return logits


def _group(channels: int, width: int, residual: bool) -> nn.Sequential:
    def normalized() -> nn.BatchNorm2d:
        return nn.BatchNorm2d(
            width, momentum=0.4
        )  # running statistics follow quickly, as a few epochs have few steps

    first = [_convolution(channels, width), nn.MaxPool2d(2), normalized(), nn.GELU()]
    rest: list[nn.Module] = [_convolution(width, width), normalized()]
    if residual:
        rest = [_Residual(*rest, nn.GELU(), _convolution(width, width), normalized())]
    group = nn.Sequential(*first, *rest, nn.GELU())
    for layer in group.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.dirac_(
                layer.weight.data[: layer.in_channels]
            )  # the first kernels begin by copying a channel each
        elif isinstance(layer, nn.BatchNorm2d):
            layer.weight.requires_grad_(False)
    return group


class ResNet9(nn.Module):
    """A shallow ResNet for images of about 32 pixels, made to train fast.

    After Page, 2018, https://myrtle.ai/learn/how-to-train-your-resnet.

    Args:
        num_classes: The width of the head.
        width: Channels of the first convolution; the last has eight times as many.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = _block(3, width)
        self.layer1 = _residual_group(width, 2 * width)
        self.layer2 = _block(2 * width, 4 * width, nn.MaxPool2d(2))
        self.layer3 = _residual_group(4 * width, 8 * width)
        self.fc = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, an eighth of the head's, which keeps them small at the start."""
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(x.amax((2, 3))) / 8
        return logits


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = super().forward(x)  # type: ignore[no-untyped-call]  # of torch
        return x + branch


def _residual_group(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        _block(channels, width, nn.MaxPool2d(2)),
        _Residual(_block(width, width), _block(width, width)),
    )


def _block(channels: int, width: int, *pool: nn.Module) -> nn.Sequential:
    """Builds a convolution that pools before it normalises, which takes less time."""
    return nn.Sequential(
        _convolution(channels, width), *pool, nn.BatchNorm2d(width), nn.ReLU(inplace=True)
    )


def _convolution(channels: int, width: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)


class WhiteningConv2d(nn.Conv2d):
    """A convolution whose kernels are the whitened principal components of image patches, and their negatives.

    After Page, 2018, https://myrtle.ai/learn/how-to-train-your-resnet-8-bag-of-tricks. The kernels stay as they are set;
    the biases are trained. Of patches of ``size`` by ``size`` pixels, there are 2 * channels * size * size kernels.
    """

    is_set: Tensor  # 1 once the kernels have been computed, uint8 ()

    def __init__(self, channels: int, size: int) -> None:
        super().__init__(channels, 2 * channels * size * size, size)
        self.weight.requires_grad_(False)
        self.register_buffer("is_set", torch.tensor(0, dtype=torch.uint8))

    def whiten(self, covariance: Tensor) -> None:
        """Sets the kernels by the covariance of flattened patches, float (d, d), and the biases to 0."""
        variances, components = torch.linalg.eigh(covariance.double().cpu())
        largest = components.gather(0, components.abs().argmax(0, keepdim=True))
        components = components * largest.sign()  # which is free, and must not hang on rounding
        kernels = (components / (variances + _EPS).sqrt()).T.reshape(-1, *self.weight.shape[1:])
        with torch.no_grad():
            self.weight.copy_(torch.cat([kernels, -kernels]))
            cast(Tensor, self.bias).zero_()
            self.is_set.fill_(1)


def patch_covariance(images: Tensor, size: int) -> Tensor:
    """Computes the mean product of each two pixels of a patch of normalised images: float64 (d, d), d = channels * size²."""
    patches = F.unfold(images, size).transpose(1, 2).flatten(0, 1).double()
    return patches.T @ patches / len(patches)


def whiten(network: nn.Module, images: Callable[[], Tensor], trainer: Trainer) -> None:
    """Sets the whitening layer of a new network, if it has one, by the first training batch of all devices.

    ``images`` makes this device's share of the batch, normalised, float (N, channels, height, width).
    """
    layer = next((layer for layer in network.modules() if isinstance(layer, WhiteningConv2d)), None)
    if layer is not None and not layer.is_set:
        share = images()
        covariance: Any = patch_covariance(
            share.cpu().float(), layer.kernel_size[0]
        )  # some devices have no float64
        layer.whiten(trainer.strategy.reduce(covariance.float().to(share.device), reduce_op="mean"))
        with torch.no_grad():  # processors may differ in the last bits of what they compute
            layer.weight.copy_(trainer.strategy.broadcast(layer.weight.detach()))
