"""A first convolution that whitens patches of the training images, so that training begins with decorrelated inputs."""

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.nn import functional as F

_EPS = 5e-4  # keeps directions in which patches hardly differ from being blown up


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
            if self.bias is not None:
                self.bias.zero_()
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
        covariance: Any = patch_covariance(share.cpu().float(), layer.kernel_size[0])  # some devices have no float64
        layer.whiten(trainer.strategy.reduce(covariance.float().to(share.device), reduce_op="mean"))
        with torch.no_grad():  # processors may differ in the last bits of what they compute
            layer.weight.copy_(trainer.strategy.broadcast(layer.weight.detach()))
