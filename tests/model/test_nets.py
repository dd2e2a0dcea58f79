"""The network that reaches 94% on CIFAR-10, and its whitening layer."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from project.model.nets.airbench import Airbench
from project.model.nets.whitening import patch_covariance, whiten


def images_of(count=6, height=8, width=11):
    """Neighbouring pixels and channels are alike, as in photographs."""
    noise = torch.randn(count, 3, height + 2, width + 2, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 3, stride=1) + noise.mean(1, keepdim=True)[:, :, 1:-1, 1:-1]


def test_airbench_is_the_papers_network_whose_convolutions_begin_by_copying_their_input():
    network, x = Airbench(10), torch.randn(2, 24, 9, 9)
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(1.97e6, rel=0.005)
    torch.testing.assert_close(network.layer1[0](x)[:, :24], x)


def test_the_whitened_output_is_white_and_the_layer_is_set_once():
    network, images = Airbench(5, (8, 8, 8)), images_of()
    one_device = SimpleNamespace(reduce=lambda tensor, reduce_op: tensor, broadcast=lambda tensor: tensor)
    trainer: Any = SimpleNamespace(strategy=one_device)
    whiten(network, lambda: images, trainer)
    whiten(network, lambda: 3 * images, trainer)
    with torch.no_grad():
        output = network.stem[0](images).double().transpose(0, 1).flatten(1)
    products = output @ output.T / output.shape[1]
    variances = torch.linalg.eigvalsh(patch_covariance(images, 2))
    torch.testing.assert_close(products[:12, :12], torch.diag(variances / (variances + 5e-4)), atol=1e-4, rtol=0)
    torch.testing.assert_close(output[12:], -output[:12])
