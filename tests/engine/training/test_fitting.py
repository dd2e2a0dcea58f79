"""A checkpoint that does not fit the command, its weights or its optimizer is refused by name before it is loaded."""

import string
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam

from project.engine.errors import UserError
from project.engine.training.fitting import (
    changed_processes,
    require_fitting_state,
    require_fitting_weights,
    require_match,
)
from project.model.optimizers import fuse
from tests.conftest import cases
from tests.small import load, one_line, small, stop_at
from tests.stress import SmallNetwork

LAST = Path("runs/run/checkpoints/last.ckpt")


def trained(cls, options, outputs):
    layer = nn.Linear(3, outputs)
    optimizer = cls(layer.parameters(), **options)
    fuse(optimizer)
    layer(torch.rand(2, 3)).sum().backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(("cls", "options"), [(SGD, {"momentum": 0.9}), (Adam, {"amsgrad": True}), (Adagrad, {})])
def test_an_optimizers_state_fits_it_and_none_of_other_shapes(cls, options):
    optimizer, other = (trained(cls, options, outputs) for outputs in (4, 2))
    require_fitting_state(optimizer, optimizer.state_dict(), "last.ckpt")
    with pytest.raises(UserError, match=r"'last\.ckpt'.* of parameter 0 has the shape \(2, 3\), not \(4, 3\)"):
        require_fitting_state(optimizer, other.state_dict(), "last.ckpt")


def test_a_run_resumes_with_its_own_parameters_monitor_and_last_checkpoint_alone(workplace, capsys):
    torch.save(SmallNetwork(8).state_dict(), "weights.pth")
    stop_at(3, "--model.weights=weights.pth")
    for flag, complaint in (
        ("--model.freeze=conv2", "this optimizer: it trained 8 parameters, and now there are 5; --model.freeze"),
        ("--monitor=val/loss", "chooses best.ckpt by val/accuracy, max, but the command by val/loss, min"),
        ("--callbacks.best_checkpoint=false", "but the command by nothing"),
        ("--callbacks.last_checkpoint=false", "resumes with --callbacks.last_checkpoint alone"),
    ):
        assert complaint in one_line(lambda flag=flag: small("--model.weights=weights.pth", flag), capsys)
        assert load(LAST)["global_step"] == 3
    small("--model.weights=weights.pth", "--monitor=val/accuracy", "--mode=max")


@cases(
    "name value complaint",
    ("other", torch.zeros(1), "it has no other"),
    ("0.bias", torch.zeros(5), r"0\.bias has the shape \(5,\), not \(4,\)"),
    ("0.bias", torch.zeros(4).long(), r"0\.bias holds int64, not float32"),
    ("1.running_var", torch.full((4,), float("inf")), r"1\.running_var has values that are not finite"),
    ("0.bias", [0.0] * 4, r"0\.bias is no plain tensor"),
)
def test_weights_that_do_not_fit_are_named(name, value, complaint):
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).state_dict()
    half = {name: weight.bfloat16() if weight.is_floating_point() else weight for name, weight in own.items()}
    require_fitting_weights(own, half, "some.ckpt")
    with pytest.raises(UserError, match=rf"'some\.ckpt' does not fit this network: {complaint}"):
        require_fitting_weights(own, {**own, name: value}, "some.ckpt")
    del half[min(half)]
    for found, what in ((half, "is missing"), ([], "it has no weights")):
        with pytest.raises(UserError, match=what):
            require_fitting_weights(own, found, "some.ckpt")


def test_a_run_resumes_that_had_counted_less(workplace):
    stop_at(3)
    older = load(LAST)
    del older["counts"]["true_shares"]
    torch.save(older, LAST)
    small()


NAMES = [f"class {letter}" for letter in string.ascii_lowercase]
OWN: dict[str, Any] = {"class_names": NAMES, "arch": "resnet18", "arch_args": {"stem": "cifar"}}


@cases(
    "changed complaint",
    ({"model": "OwnClassifier"}, "holds a OwnClassifier, but this command asks for SimpleNamespace; see --model"),
    ({"arch": "resnet50"}, "another network .* --model.arch resnet50 --model.arch_args.stem cifar"),
    ({"arch_args": {"stem": "imagenet"}}, "another network .* --model.arch_args.stem imagenet"),
    ({"class_names": ["a", "b"]}, "2 classes a and b, .* 26 classes class a, class b"),
    ({"class_names": [*NAMES[:16], "other"]}, "other, .* class q"),
    ({"selection": None}, "chooses best.ckpt by nothing, .* by val/accuracy, max;"),
)
def test_a_difference_is_named(changed, complaint):
    chosen: Any = {"monitor": "val/accuracy", "mode": "max"}
    about: Any = {"model": "SimpleNamespace", "selection": chosen, **OWN}
    require_match(about, "some.ckpt", SimpleNamespace(**OWN), chosen)
    with pytest.raises(UserError, match=complaint):
        require_match(about | changed, "some.ckpt", SimpleNamespace(**OWN), chosen)


@cases("before now said", (2, 2, ""), (2, 1, "; on 1 process, not 2: "), (1, 3, "processes"))
def test_another_number_of_processes_is_said(before, now, said):
    about: Any = {"processes": before}
    found = changed_processes(about, now)
    assert said in found
    assert bool(found) == (before != now) == ("augmentation are exact, BatchNorm's shares of a batch and" in found)
