"""The network of airbench, for small images in few epochs: its first layer whitens patches.

python -m project.fit --model.arch examples.recipes.airbench.Airbench \
    --trainer.callbacks+=examples.recipes.airbench.WhitenByFirstBatch
"""

from typing import Any, cast

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from project.model.small_networks import global_max_pool

_EPS = 5e-4  # limits the gain of directions in which patches hardly differ


class Airbench(nn.Module):
    """A whitening layer, six convolutions and a head, for images of about 32 pixels.

    After Jordan, 2024, https://arxiv.org/abs/2404.00498: each convolution begins as nearly the
    identity, and scales of BatchNorm are not trained. Train it with :class:`WhitenByFirstBatch`.

    Args:
        num_classes: The width of the head.
        widths: The channels of each group.
    """

    def __init__(self, num_classes: int, widths: tuple[int, int, int] = (64, 256, 256)) -> None:
        super().__init__()
        self.stem = nn.Sequential(WhiteningConv2d(3, 2), nn.GELU())
        self.layer1 = _group(24, widths[0])
        self.layer2 = _group(widths[0], widths[1])
        self.layer3 = _group(widths[1], widths[2])
        self.fc = nn.Linear(widths[2], num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits, a ninth of the head's, which keeps them small at the start."""
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        logits: Tensor = self.fc(global_max_pool(x)) / 9
        return logits


def _group(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        _convolution(channels, width),
        nn.MaxPool2d(2),
        _norm(width),
        nn.GELU(),
        _convolution(width, width),
        _norm(width),
        nn.GELU(),
    )


def _convolution(channels: int, width: int) -> nn.Conv2d:
    """Builds a convolution whose first kernels begin by copying a channel each."""
    layer = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
    nn.init.dirac_(layer.weight.data[:channels])
    return layer


def _norm(width: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(width, momentum=0.4)  # follows quickly, as a few epochs have few steps
    layer.weight.requires_grad_(False)
    return layer


class WhiteningConv2d(nn.Conv2d):
    """A convolution by the whitened principal components of patches, and their negatives.

    After Page, 2018, https://myrtle.ai/learn/how-to-train-your-resnet-8-bag-of-tricks. Only the
    biases are trained. Patches of ``size`` by ``size`` pixels have 2 * channels * size * size
    kernels.
    """

    is_set: Tensor  # 1 once the kernels have been computed, uint8 ()

    def __init__(self, channels: int, size: int) -> None:
        super().__init__(channels, 2 * channels * size * size, size)
        self.weight.requires_grad_(False)
        self.register_buffer("is_set", torch.tensor(0, dtype=torch.uint8))

    @torch.no_grad()
    def whiten(self, covariance: Tensor) -> None:
        """Sets the kernels by the covariance of flattened patches, (d, d), and the biases to 0."""
        variances, components = torch.linalg.eigh(covariance.double().cpu())
        largest = components.gather(0, components.abs().argmax(0, keepdim=True))
        components = components * largest.sign()  # arbitrary otherwise, and subject to rounding
        kernels = (components / (variances + _EPS).sqrt()).T.reshape(-1, *self.weight.shape[1:])
        self.weight.copy_(torch.cat([kernels, -kernels]))
        cast(Tensor, self.bias).zero_()
        self.is_set.fill_(1)


def patch_covariance(images: Tensor, size: int) -> Tensor:
    """Computes the mean product of each two pixels of a patch of images, float64 (d, d)."""
    patches = F.unfold(images, size).transpose(1, 2).flatten(0, 1).double()
    return patches.T @ patches / len(patches)


class WhitenByFirstBatch(Callback):
    """Sets the whitening layer of a new ``Airbench`` by the first batch of all devices."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Computes the kernels once; a checkpoint has them."""
        layer = pl_module.network.stem[0]
        if layer.is_set:
            return
        images = pl_module.normalization(batch.images, like=layer.weight)
        covariance: Any = patch_covariance(images.cpu().float(), layer.kernel_size[0])
        covariance = covariance.float().to(images.device)  # some devices have no float64
        layer.whiten(trainer.strategy.reduce(covariance, reduce_op="mean"))
        with torch.no_grad():  # processors may differ in the last bits
            layer.weight.copy_(trainer.strategy.broadcast(layer.weight.detach()))
