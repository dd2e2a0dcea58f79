"""Optimizers: parameter groups, fused steps, and parameters outside of the network."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, RMSprop

from project.model import ImageClassifier
from project.model.networks import build_network
from project.model.optimizers import fuse_on_cpu, parameter_groups
from tests.model.test_classifier import Memory, linear, trainer


def test_every_trained_parameter_is_in_one_group_and_decays_unless_it_is_a_vector():
    network = build_network("resnet18", 3)
    network.conv1.requires_grad_(False)
    spared = {
        f"{prefix}.{name}"
        for prefix, module in network.named_modules()
        for name, _ in module.named_parameters(recurse=False)
        if isinstance(module, nn.BatchNorm2d) or name == "bias"
    }
    names = {parameter: name for name, parameter in network.named_parameters() if name != "conv1.weight"}
    found = [
        (names.pop(parameter), group["weight_decay"])
        for group in SGD(parameter_groups(network), lr=0.1, weight_decay=0.01).param_groups
        for parameter in group["params"]
    ]
    assert not names
    assert all(decay == (0.0 if name in spared else 0.01) for name, decay in found)


@pytest.mark.parametrize(
    ("cls", "asked"),
    [(SGD, {"fused": False}), (SGD, {"foreach": True}), (SGD, {"differentiable": True}), (RMSprop, {})],
)
def test_steps_are_fused_unless_another_way_was_asked_for(cls, asked):
    fuse_on_cpu(usual := SGD([nn.Parameter(torch.zeros(1))]))
    assert usual.param_groups[0]["fused"]
    (group,) = (optimizer := cls([nn.Parameter(torch.zeros(1))], **asked)).param_groups
    before = dict(group)
    fuse_on_cpu(optimizer)
    assert group == before


class Own(ImageClassifier):
    """Has parameters outside of its network."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.centers = nn.Parameter(torch.ones(3, 3))
        self.temperature = nn.Parameter(torch.ones(3))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        logits, features = self.logits_and_features(batch.images)
        self.seen = features
        distances = (features - self.centers[batch.labels]).square().sum(1)
        return (self.loss(logits * self.temperature, batch.labels) + distances).mean()


def test_parameters_outside_of_the_network_are_trained_with_decay_by_their_kind():
    model, run = linear(Own, optimizer=partial(SGD, lr=0.1, weight_decay=0.01)), trainer(max_epochs=1)
    calls: list[Any] = []
    model.network.register_forward_hook(lambda *_: calls.append(model.training))
    run.fit(model, datamodule=Memory())
    assert not torch.equal(model.centers, torch.ones(3, 3))
    assert not torch.equal(model.temperature, torch.ones(3))
    assert torch.equal(model.fixed, torch.ones(3))
    decay = {id(p): group["weight_decay"] for group in run.optimizers[0].param_groups for p in group["params"]}
    assert (decay[id(model.centers)], decay[id(model.temperature)]) == (0.01, 0.0)
    assert id(model.fixed) not in decay
    assert calls.count(True) == 2  # one forward pass for each of the two batches
    assert model.seen.shape == (16, 3)


def test_the_features_of_a_compiled_network_are_those_of_each_batch():
    model, data = linear(), Memory()
    model.network.compile(backend="eager")
    for batch in data.batches():
        logits, features = model.logits_and_features(batch.images)
        inputs = model.normalization(batch.images, like=features)
        torch.testing.assert_close(features, inputs.mean((2, 3)))
        torch.testing.assert_close(logits, model(batch.images))
