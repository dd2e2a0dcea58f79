"""Optimizers: fused steps, parameters outside of the network; Muon against SVD and torch's AdamW."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, RMSprop

from project.engine.errors import UserError
from project.model import Muon
from project.model.optimizers import build_optimizer, fuse
from tests.model.test_classifier import Memory, linear, trainer


@pytest.mark.parametrize(
    ("cls", "asked"),
    [(SGD, {"fused": False}), (SGD, {"foreach": True}), (SGD, {"differentiable": True}), (RMSprop, {})],
)
def test_steps_are_fused_unless_another_way_was_asked_for(cls, asked):
    fuse(usual := SGD([nn.Parameter(torch.zeros(1))]))
    assert usual.param_groups[0]["fused"]
    (group,) = (optimizer := cls([nn.Parameter(torch.zeros(1))], **asked)).param_groups
    before = dict(group)
    fuse(optimizer)
    assert group == before


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_parameters_outside_of_the_network_are_trained_as_its_head_with_decay_by_their_kind(layer_decay):
    model = linear()
    model.centers, model.temperature = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))
    model.fixed = nn.Parameter(torch.ones(3), requires_grad=False)
    groups = build_optimizer(partial(SGD, lr=0.1, weight_decay=0.01), model, layer_decay).param_groups
    settings = {p: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert (settings[model.centers], settings[model.temperature]) == ((0.1, 0.01), (0.1, 0.0))
    assert settings.keys() == {*model.parameters()} - {model.fixed}


def test_the_features_of_a_compiled_network_are_those_of_each_batch():
    model, data = linear(), Memory()
    model.network.compile(backend="eager")
    for batch in data.batches():
        logits, features = model.logits_and_features(batch.images)
        inputs = model.normalization(batch.images, like=features)
        torch.testing.assert_close(features, inputs.mean((2, 3)))
        torch.testing.assert_close(logits, model(batch.images))


def test_what_an_optimizer_does_not_accept_is_one_line():
    with pytest.raises(UserError, match=r"--model\.optimizer: Invalid learning rate: -1"):
        trainer(max_epochs=1).fit(linear(optimizer=partial(SGD, lr=-1)), datamodule=Memory())


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (64, 24, 1, 1)])
def test_muon_moves_kernels_by_orthogonal_steps_of_their_momentum_and_keeps_their_norm(shape):
    optimizer = Muon([kernel := nn.Parameter(random(*shape, seed=7))], lr=0.1, momentum=0.8)
    velocity: Any = 0.0
    for step in range(4):
        before = kernel.detach().double().flatten(1)
        kernel.grad = random(*shape, seed=step)
        gradient = kernel.grad.double().flatten(1)
        velocity = 0.8 * velocity + gradient
        optimizer.step()
        moved = (before * (len(before) ** 0.5 / before.norm()) - kernel.detach().double().flatten(1)) / 0.1
        left, values, right = torch.linalg.svd(gradient + 0.8 * velocity, full_matrices=False)
        aligned = left.T @ moved @ right.T
        assert all(0.3 < value < 1.6 for value in aligned.diagonal()[values > values.max() / 10])
        torch.testing.assert_close(aligned, aligned.diagonal().diag(), atol=1e-4, rtol=0)


def test_muon_trains_a_new_head_from_zero_and_all_else_as_torchs_adamw_does():
    zeros, weight_decay = nn.Parameter(torch.zeros(8, 3, 1, 1)), 0.1
    zeros.grad = random(8, 3, 1, 1, seed=0)
    Muon([zeros], lr=0.1).step()
    assert 0 < float(zeros.detach().norm()) < 1
    ours, theirs = ([nn.Parameter(random(*shape, seed=7)) for shape in ((10, 8), (10,))] for _ in range(2))
    muon = Muon(ours, adam_lr=0.01, weight_decay=weight_decay)
    adam = AdamW(theirs, lr=0.01, betas=(0.8, 0.95), weight_decay=weight_decay)
    for step in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = other.grad = random(*one.shape, seed=step)
        muon.step()
        adam.step()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
