"""A checkpoint names networks, classes and settings; none of them is imported, or far larger than the file."""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
from torch import nn

from project.engine.errors import UserError
from project.engine.run.settings import allow_module, imported_class, limited_by, plain_options
from project.model import ImageClassifier
from project.model.networks import build_network, network_of_file
from tests.conftest import cases
from tests.engine.run.test_checkpoint import EXPLAINED, GOOD

NAMES = ["a", "b", "c"]


class Deep(nn.Sequential):
    def __init__(self, num_classes: int, depth: int = 1) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *(nn.Linear(3, 3) for _ in range(depth)))
        self.append(nn.Linear(3, num_classes))


def function(num_classes: int) -> nn.Module:
    return Deep(num_classes)


shallow = partial(Deep, depth=1)


@pytest.fixture
def allowed(monkeypatch) -> set[str]:
    """The modules that the user has named; none yet."""
    names: set[str] = set()
    monkeypatch.setattr("project.engine.run.settings._allowed", names)
    return names


def test_a_network_is_found_in_a_module_that_the_user_has_named_and_where_it_has_moved(allowed):
    here = f"{__name__}.Deep"
    with pytest.raises(UserError, match=rf"network is {here}; give --import {__name__} if that is yours"):
        network_of_file(here, None)
    allow_module(__name__.rpartition(".")[0])  # the package
    assert [network_of_file(f"{__name__}.{name}", None) for name in ("Deep", "shallow", "function")]
    assert network_of_file("of_an_earlier_name.Deep", {"depth": 3}) == here
    assert network_of_file("resnet18", {"norm": "x"}) == "resnet18"


def test_a_module_that_imports_when_it_is_asked_is_not_asked(allowed, monkeypatch):
    asked: list[str] = []
    lazy: Any = ModuleType("lazy")
    lazy.__getattr__ = lambda name: asked.append(name)
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    allow_module("lazy")
    with pytest.raises(UserError, match="give --import lazy"):
        network_of_file("lazy.Network", None)
    assert not asked


def test_in_python_the_callers_word_is_enough(allowed, tmp_path):
    path = tmp_path / "net.ckpt"
    model = ImageClassifier(NAMES, EXPLAINED["preprocessing"], arch=f"{__name__}.Deep")
    torch.save(GOOD | {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}, path)
    allowed.clear()
    with pytest.raises(UserError, match="give --import"):
        ImageClassifier.load_from_checkpoint(path)
    assert isinstance(ImageClassifier.load_from_checkpoint(path, arch=f"{__name__}.Deep").network, Deep)
    assert isinstance(ImageClassifier.load_from_checkpoint(path).network, Deep)  # it has been named now


@pytest.mark.parametrize("arch", ["shufflenet_v2_x0_5", "squeezenet1_1", "timm/vit_tiny_patch16_224"])
def test_the_limit_leaves_room_for_the_network_itself(arch):
    with torch.device("meta"):
        weights = build_network(arch, 3).state_dict()
        with limited_by(weights, NAMES):
            build_network(arch, 3)
        with pytest.raises(UserError), limited_by({"x": torch.zeros(3)}, NAMES):
            build_network("vgg11", 3)
    assert nn.Linear(4000, 4000).weight.numel() == 4000**2  # nothing is limited afterwards


class Base:
    def __init__(self, size: int = 1, names: list[str] | None = None, mode: Literal["a", "b"] = "a") -> None: ...


class Derived(Base):
    def __init__(self, transform: Callable[..., Any] | None = None, model: Base | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)


first, newest = type("Twice", (Derived,), {}), type("Twice", (Derived,), {})  # as where a notebook's cell is run again


def test_a_class_is_found_by_its_name_whatever_module_is_named_in_front():
    assert imported_class("Derived", Base) is Derived
    assert imported_class("no_such_module.Derived", Base) is Derived
    assert imported_class("Twice", Base) is newest is not first


@pytest.mark.parametrize("name", ["Base", "OrderedDict", "collections.OrderedDict", "antigravity.Derive", "", "."])
def test_nothing_else_is_found_and_nothing_is_imported(name):
    assert imported_class(name, Base) is None
    assert "antigravity" not in sys.modules


@cases(
    "options kept",
    ({"size": 3, "names": ["x"], "mode": "b"}, {"size": 3, "names": ["x"], "mode": "b"}),
    ({"size": object(), "names": [len]}, {}),
    ({"_instantiator": "os.system", "_class_path": "os.system", "other": 1}, {}),
    ({"transform": "os.system", "model": {"class_path": "os.system"}, "size": 2}, {"size": 2}),
    ({"transform": ["os.system"], "model": None}, {"model": None}),
    ({1: 2, "names": {1: 2}}, {}),
    ("size", {}),
    (None, {}),
)
def test_what_is_no_plain_setting_is_left_out(options, kept):
    assert plain_options(options, newest) == kept
