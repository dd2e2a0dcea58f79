"""The network that reaches 94% on CIFAR-10."""

import pytest
import torch

from project.model.nets.airbench import Airbench


def test_it_is_the_papers_network_whose_convolutions_begin_by_copying_their_input():
    network, x = Airbench(10), torch.randn(2, 24, 9, 9)
    assert sum(parameter.numel() for parameter in network.parameters()) == pytest.approx(1.97e6, rel=0.005)
    torch.testing.assert_close(network.layer1[0](x)[:, :24], x)
