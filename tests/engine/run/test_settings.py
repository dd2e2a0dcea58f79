"""Settings that a checkpoint remembers choose nothing that is imported."""

import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest

from project.engine.run.settings import imported_class, plain_options


class Base:
    def __init__(self, size: int = 1, names: list[str] | None = None, mode: Literal["a", "b"] = "a") -> None: ...


class Derived(Base):
    def __init__(self, transform: Callable[..., Any] | None = None, model: Base | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Twice(Derived):
    pass


FIRST = Twice


class Twice(Derived):  # type: ignore[no-redef]  # as where a notebook's cell is run again
    pass


def test_a_class_is_found_by_its_name_whatever_module_is_named_in_front():
    assert imported_class("Derived", Base) is Derived
    assert imported_class("no_such_module.Derived", Base) is Derived
    assert imported_class("Twice", Base) is Twice is not FIRST


@pytest.mark.parametrize("name", ["Base", "OrderedDict", "collections.OrderedDict", "antigravity.Derive", "", "."])
def test_nothing_else_is_found_and_nothing_is_imported(name):
    assert imported_class(name, Base) is None
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"size": 3, "names": ["x"], "mode": "b"}, {"size": 3, "names": ["x"], "mode": "b"}),
        ({"size": object(), "names": [len]}, {}),
        ({"_instantiator": "os.system", "_class_path": "os.system", "other": 1}, {}),
        ({"transform": "os.system", "model": {"class_path": "os.system"}, "size": 2}, {"size": 2}),
        ({"transform": ["os.system"], "model": None}, {"model": None}),
        ({1: 2, "names": {1: 2}}, {}),
        ("size", {}),
        (None, {}),
    ],
)
def test_what_is_no_plain_setting_is_left_out(options, kept):
    assert plain_options(options, Twice) == kept
