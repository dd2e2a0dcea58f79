"""Weights from elsewhere."""

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from project.engine.errors import UserError
from project.engine.run.checkpoint import read_weights
from project.model.networks import build_network
from project.model.pretrained import load_weights

CLASSES = 7


@pytest.fixture(scope="module")
def trained():
    """A state dict as torchvision gives it."""
    torch.manual_seed(1)
    return {name: value + 1 for name, value in resnet18(num_classes=CLASSES).state_dict().items()}


def loaded(path, num_classes=CLASSES):
    network = build_network("resnet18", num_classes)
    left_out = load_weights(network, read_weights(path), str(path), num_classes)
    return network.state_dict(), left_out


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: weights,
        lambda weights: {f"module.{name}": value for name, value in weights.items()},
        lambda weights: {f"_orig_mod.module.{name}": value for name, value in weights.items()},
        lambda weights: {"state_dict": weights, "epoch": 3},
        lambda weights: {"model": weights, "optimizer": {"lr": 0.1}},
        lambda weights: {"best_state_dict": {f"module.{name}": value for name, value in weights.items()}},
        lambda weights: {"state_dict": {f"network.{name}": value for name, value in weights.items()}, "about": {}},
    ],
    ids=["plain", "module", "compiled", "state_dict", "model", "best_state_dict", "ours"],
)
def test_weights_are_found_however_a_script_saved_them(tmp_path, trained, wrap):
    torch.save(wrap(trained), tmp_path / "weights.pth")
    state, left_out = loaded(tmp_path / "weights.pth")
    assert left_out == []
    assert all(torch.equal(state[name], value) for name, value in trained.items())


class Wrapped(nn.Module):
    """Has an attribute that is called like a wrapper."""

    def __init__(self, num_classes):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4, num_classes))


@pytest.mark.parametrize("prefix", ["", "network.", "module.", "_orig_mod.module."])
def test_names_of_the_network_itself_that_look_like_a_wrappers_stay(prefix):
    trained, network = Wrapped(3), Wrapped(5)
    saved = {prefix + name: value for name, value in trained.state_dict().items()}
    left_out = load_weights(network, saved, "a file", 5)
    assert left_out == ["network.2.weight", "network.2.bias"]
    assert torch.equal(network.state_dict()["network.0.weight"], trained.state_dict()["network.0.weight"])


def test_a_head_for_other_classes_is_left_out_and_named(tmp_path, trained):
    torch.save(trained, tmp_path / "weights.pth")
    state, left_out = loaded(tmp_path / "weights.pth", num_classes=3)
    assert left_out == ["fc.weight", "fc.bias"]
    assert not any(state[name].any() for name in left_out)
    assert state["fc.weight"].shape == (3, 512)
    assert torch.equal(state["conv1.weight"], trained["conv1.weight"])


def test_torchvisions_older_files_do_without_counters(tmp_path, trained):
    torch.save({n: v for n, v in trained.items() if not n.endswith("num_batches_tracked")}, tmp_path / "old.pth")
    state, left_out = loaded(tmp_path / "old.pth")
    assert left_out == []
    assert torch.equal(state["bn1.running_mean"], trained["bn1.running_mean"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda weights: weights.pop("conv1.weight"), r"missing: conv1\.weight"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "unknown: extra"),
        (lambda weights: weights.update({"bn1.weight": torch.zeros(3)}), r"of another shape: bn1\.weight"),
    ],
)
def test_anything_else_that_does_not_fit_is_listed(tmp_path, trained, change, complaint):
    weights = dict(trained)
    change(weights)
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(UserError, match=complaint):
        loaded(tmp_path / "weights.pth")


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, [1, 2], {"state_dict": {"lr": 0.1}}])
def test_a_file_without_weights_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "weights.pth")
    with pytest.raises(UserError, match="has no weights"):
        read_weights(tmp_path / "weights.pth")
