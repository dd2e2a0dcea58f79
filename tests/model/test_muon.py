"""Muon against singular values and torch's AdamW."""

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from project.model.muon import Muon, orthogonalized


def gradients(parameters, step):
    generator = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def parameters():
    generator = torch.Generator().manual_seed(7)
    shapes = (8, 3, 3, 3), (10, 8), (10,)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


@pytest.mark.parametrize("shape", [(8, 27), (64, 24)])
def test_singular_values_move_near_to_one_and_vectors_stay(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    result = orthogonalized(matrix)
    found = torch.diagonal(left.T @ result @ right.T)
    torch.testing.assert_close(left.T @ result @ right.T, torch.diag(found), atol=1e-4, rtol=0)
    assert all(0.3 < value < 1.6 for value in found[values > values.max() / 10])


def test_kernels_take_orthogonal_steps_of_the_momentum_and_keep_their_norm():
    zeros = nn.Parameter(torch.zeros(8, 3, 1, 1))  # a new head of 1x1 kernels
    gradients([zeros], 0)
    Muon([zeros], lr=0.1).step()
    assert 0 < float(zeros.detach().norm()) < 1
    kernel = nn.Parameter(parameters()[0].detach())
    optimizer = Muon([kernel], lr=0.1, momentum=0.8)
    velocity = torch.zeros(8, 27, dtype=torch.float64)
    for step in range(4):
        before = kernel.detach().double().flatten(1)
        gradients([kernel], step)
        assert kernel.grad is not None
        gradient = kernel.grad.double().flatten(1)
        velocity = 0.8 * velocity + gradient
        optimizer.step()
        scaled = before * (8**0.5 / before.norm())
        moved = (scaled - kernel.detach().double().flatten(1)) / 0.1
        left, _, right = torch.linalg.svd(gradient + 0.8 * velocity, full_matrices=False)
        aligned = left.T @ moved @ right.T
        assert aligned.diagonal().min() > 0.3
        torch.testing.assert_close(aligned, aligned.diagonal().diag(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_all_else_is_trained_as_by_torchs_adamw(weight_decay):
    ours, theirs = parameters(), parameters()
    muon = Muon(ours, lr=0.1, adam_lr=0.01, weight_decay=weight_decay)
    adam = AdamW(theirs[1:], lr=0.01, betas=(0.8, 0.95), weight_decay=weight_decay)
    for step in range(5):
        gradients(ours, step)
        gradients(theirs, step)
        muon.step()
        adam.step()
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(one, other)
