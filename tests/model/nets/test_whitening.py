"""The whitening layer."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from project.model.nets.whitening import WhiteningConv2d, patch_covariance, whiten
from project.model.networks import build_network


def images_of(count=6, height=8, width=11):
    """Neighbouring pixels and channels are alike, as in photographs."""
    noise = torch.randn(count, 3, height + 2, width + 2, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 3, stride=1) + noise.mean(1, keepdim=True)[:, :, 1:-1, 1:-1]


def test_the_output_is_white():
    layer, images = WhiteningConv2d(3, 2), images_of()
    layer.whiten(patch_covariance(images, 2))
    with torch.no_grad():
        output = layer(images).double().transpose(0, 1).flatten(1)
    products = output @ output.T / output.shape[1]
    strengths = torch.linalg.eigvalsh(patch_covariance(images, 2))
    expected = torch.diag(strengths / (strengths + 5e-4))
    torch.testing.assert_close(products[:12, :12], expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(output[12:], -output[:12])


def test_it_is_set_once_and_a_checkpoint_remembers_it():
    network = build_network("airbench", 5)
    one_device = SimpleNamespace(reduce=lambda tensor, reduce_op: tensor, broadcast=lambda tensor: tensor)
    trainer: Any = SimpleNamespace(strategy=one_device)
    whiten(network, images_of, trainer)
    first = {name: value.clone() for name, value in network.state_dict().items()}
    assert bool(first["stem.0.is_set"])
    whiten(network, lambda: 3 * images_of(), trainer)
    assert all(torch.equal(value, first[name]) for name, value in network.state_dict().items())

    loaded = build_network("airbench", 5)
    loaded.load_state_dict(first)
    whiten(loaded, lambda: 3 * images_of(), trainer)
    assert torch.equal(loaded.state_dict()["stem.0.weight"], first["stem.0.weight"])
