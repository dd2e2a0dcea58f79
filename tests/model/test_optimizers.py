"""Optimizers: parameter groups, fused steps, and parameters outside of the network."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from project.model import ImageClassifier
from project.model.networks import build_network
from project.model.optimizers import fuse_on_cpu, parameter_groups
from tests.model.test_classifier import Memory, linear, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # Lightning walks torch's pytrees by a deprecated class
    "ignore:.*smaller than the logging interval",  # advice that has no use on data this small
)


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


def after_steps(optimizer_class, fused, **options):
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(65, 67, generator=generator).to(torch.float32 if fused else torch.float64))
    optimizer = optimizer_class([weight], lr=0.01, **options)
    if fused:
        fuse_on_cpu(optimizer)
        assert optimizer.param_groups[0]["fused"]
    for _ in range(5):
        weight.grad = torch.randn(65, 67, generator=generator).to(weight.dtype)
        optimizer.step()
    return weight.detach().double()


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (SGD, {}),
        (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (Adam, {}),
        (AdamW, {}),
        (Adagrad, {}),
    ],
    ids=str,
)
def test_fused_steps_are_the_steps_of_the_formula_in_float64(optimizer_class, options):
    fused, formula = (after_steps(optimizer_class, fused, **options) for fused in (True, False))
    torch.testing.assert_close(fused, formula, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "asked"),
    [(SGD, {"fused": False}), (SGD, {"foreach": True}), (SGD, {"differentiable": True}), (RMSprop, {})],
)
def test_another_way_of_stepping_that_was_asked_for_stays(cls, asked):
    (group,) = (optimizer := cls([nn.Parameter(torch.zeros(1))], **asked)).param_groups
    before = dict(group)
    fuse_on_cpu(optimizer)
    assert group == before


@pytest.mark.parametrize("arch", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "resnet18", "levit_128s"])
def test_what_a_network_of_timm_names_takes_no_weight_decay_as_in_timm(arch):
    pytest.importorskip("timm")
    from timm.optim import param_groups_weight_decay  # type: ignore[attr-defined]  # not in its __all__

    network: Any = build_network(f"timm/{arch}", 3)
    named = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs = param_groups_weight_decay(network, weight_decay=0.1, no_weight_decay_list=named)
    names = {parameter: name for name, parameter in network.named_parameters()}
    expected = {names[parameter] for group in theirs if group["weight_decay"] == 0 for parameter in group["params"]}
    ours = parameter_groups(network)
    found = {names[parameter] for group in ours if group.get("weight_decay") == 0 for parameter in group["params"]}
    assert found == expected
    assert sum(len(group["params"]) for group in ours) == len(names)
    if arch.startswith("vit"):
        assert {"pos_embed", "cls_token"} <= found


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
