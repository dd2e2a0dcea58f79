"""Weights and optimizer states that do not fit are named before torch's fused kernels take them up."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, Rprop

from project.engine.errors import UserError
from project.engine.training.fitting import require_fitting_state, require_fitting_weights
from project.model.optimizers import fuse_on_cpu

OPTIMIZERS: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (Adam, {"amsgrad": True}),
    (Adam, {"fused": True}),
    (Adam, {"capturable": False, "lr": torch.tensor(0.1)}),
    *((cls, {}) for cls in (Adadelta, Adafactor, Adagrad, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop)),
]


def trained(cls: type[Optimizer], options: dict[str, Any]) -> tuple[nn.Module, Any]:
    """A network and its optimizer after two steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    optimizer: Any = cls(network.parameters(), **options)
    fuse_on_cpu(optimizer)
    for _ in range(2):
        network(torch.rand(2, 3, 4, 4)).sum().backward()
        optimizer.step()
    return network, optimizer


def check(network: nn.Module, optimizer: Any, state: Any) -> None:
    names = {parameter: name for name, parameter in network.named_parameters()}
    require_fitting_state(optimizer, state, names, "last.ckpt")


@pytest.mark.parametrize(("cls", "options"), OPTIMIZERS, ids=str)
def test_a_state_fits_the_optimizer_that_it_is_of(cls, options):
    network, optimizer = trained(cls, options)
    check(network, optimizer, optimizer.state_dict())


NAN = float("nan")
TAMPERED: dict[str, tuple[Any, str]] = {
    "shape": (
        lambda s: s["state"][0].update(exp_avg=torch.zeros(3)),
        r"exp_avg of 0\.weight has the shape \(3,\), not",
    ),
    "number": (lambda s: s["state"][0].update(exp_avg=torch.zeros(())), r"exp_avg of 0\.weight has the shape \(\)"),
    "dtype": (lambda s: s["state"][1].update(exp_avg=torch.zeros(4).int()), "exp_avg of 0.bias holds int32, not float"),
    "nan": (lambda s: s["state"][1]["exp_avg"].fill_(NAN), r"exp_avg of 0\.bias has values that are not finite"),
    "sparse": (lambda s: s["state"][1].update(exp_avg=torch.zeros(4).to_sparse()), "is no plain tensor"),
    "of no parameter": (lambda s: s["state"].update({99: s["state"].pop(1)}), "it is not that of 6 parameters"),
    "rate": (lambda s: s["param_groups"][0].update(lr=NAN), "its lr is missing or no number"),
    "parameters": (lambda s: s["param_groups"][0]["params"].pop(), "it is not that of 6 parameters"),
    "groups": (lambda s: s.update(param_groups={}), "it is not that of 6 parameters"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_what_does_not_fit_is_named(case):
    network, optimizer = trained(Adam, {"fused": True})  # otherwise torch takes a number for all elements
    state = copy.deepcopy(optimizer.state_dict())
    change, complaint = TAMPERED[case]
    change(state)
    with pytest.raises(UserError, match=complaint) as error:
        check(network, optimizer, state)
    assert "'last.ckpt' does not fit this optimizer" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("other", torch.zeros(1), "it has no other"),
        ("0.bias", torch.zeros(5), r"0\.bias has the shape \(5,\), not \(4,\)"),
        ("0.bias", torch.zeros(4).long(), r"0\.bias holds int64, not float32"),
        ("1.running_var", torch.full((4,), float("inf")), r"1\.running_var has values that are not finite"),
        ("0.bias", [0.0] * 4, r"0\.bias is no plain tensor"),
    ],
)
def test_weights_that_do_not_fit_are_named(name, value, complaint):
    network, _ = trained(SGD, {"lr": 0.1})
    own = network.state_dict()
    half = {name: weight.bfloat16() if weight.is_floating_point() else weight for name, weight in own.items()}
    require_fitting_weights(own, half, "some.ckpt")
    with pytest.raises(UserError, match=rf"'some\.ckpt' does not fit this network: {complaint}"):
        require_fitting_weights(own, {**own, name: value}, "some.ckpt")
    del half[min(half)]
    for found, what in ((half, "is missing"), ([], "it has no weights")):
        with pytest.raises(UserError, match=what):
            require_fitting_weights(own, found, "some.ckpt")
