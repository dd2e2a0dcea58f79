"""Values of a checkpoint are of the types that their places demand."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
import torch
from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from lightkeeper.exact._plain import MisfitError
from lightkeeper.images._schema import Rule, require_fit, require_like

from tests.toy import cases


class Inner(TypedDict):
    number: float
    texts: NotRequired[list[str]]


class Outer(TypedDict):
    inner: Inner | None
    mode: Literal["a", "b"]
    count: Annotated[int, Rule("a whole number from 0", lambda count: count >= 0)]


SOUND: dict[str, Any] = {"inner": {"number": 1, "texts": ("x",)}, "mode": "a", "count": 0}


@cases(
    "change problem",
    ({}, None),
    ({"inner": None, "further": object()}, None),
    ({"inner": 5}, "inner must be a dict or nothing, got 5"),
    ({"inner": {"number": True}}, "inner.number must be a number, got True"),
    ({"inner": {}}, "inner.number is missing"),
    ({"inner": {"number": 0, "texts": None}}, "inner.texts must be a list of text, got nothing"),
    ({"inner": {"number": 0, "texts": ["x", 1]}}, "inner.texts.1 must be text, got 1"),
    ({"mode": "c\x1b"}, r"mode must be 'a' or 'b', got 'c\x1b'"),
    ({"mode": ["a"]}, "mode must be 'a' or 'b', got a list"),
    ({"count": -1}, "count must be a whole number from 0, got -1"),
    ({"count": 0.5}, "count must be a whole number, got 0.5"),
)
def test_a_value_fits_a_typed_dict_or_the_message_says_where_not(change, problem):
    with pytest.raises(MisfitError, match=f"^{re.escape(problem)}$") if problem else nullcontext():
        require_fit(SOUND | change, Outer)


@cases(
    "annotation right wrong",
    (PositiveInt, [1], [0, 1.5, True, "1", None]),
    (ClosedUnitInterval | None, [0, 0.5, None], [1.5, "0.5"]),
    (list[PositiveInt], [[], [1], (2, 3)], [[0], {}, "ab"]),
    (tuple[int, str], [(1, "a"), [1, "a"]], [("a", 1)]),
    (tuple[float, ...], [(), (1, 0.5)], [("a",)]),
    (dict[str, list[int]], [{}, {"a": [1]}], [{1: [1]}, {"a": ["x"]}, []]),
    (Sequence[str], [["a"]], ["a", [1]]),
    (Any, [None, "x", {}], []),
    (Path, ["anything", 5], []),  # of such a class, nothing is known
)
def test_values_fit_the_annotations_of_constructors(annotation, right, wrong):
    for value in right:
        require_fit(value, annotation)
    for value in wrong:
        with pytest.raises(MisfitError):
            require_fit(value, annotation)


EXAMPLE = {
    "rate": 0.1,
    "betas": (0.9, 0.999),
    "foreach": None,
    "nesterov": False,
    "mode": "min",
    "mean": torch.zeros(2, 3),
    "best": torch.tensor(0.0),
    "milestones": Counter([3, 5]),
    "unknown": {},
    "list": [],
}


@cases(
    "change problem",
    ({}, None),
    ({"rate": 1, "foreach": True, "nesterov": None, "more": len}, None),
    ({"milestones": Counter([4]), "unknown": {"a": "b"}, "list": [1, "x"]}, None),
    ({"rate": "fast"}, "rate must be a number, got 'fast'"),
    ({"rate": torch.zeros(1)}, "rate must be a number, got a tensor of torch.float32"),
    ({"betas": (0.9,)}, "betas must have 2 values, got 1"),
    ({"betas": [0.9, None]}, "betas.1 must be a number, got nothing"),
    ({"foreach": []}, "foreach must be"),
    ({"nesterov": 1}, "nesterov must be true or false or nothing, got 1"),
    ({"mode": 3}, "mode must be text, got 3"),
    ({"mean": torch.zeros(2)}, r"mean must be a tensor of the shape \(2, 3\), got"),
    ({"mean": torch.zeros(1).expand(2, 3)}, "mean must be a tensor"),
    ({"mean": torch.zeros(2, 3).to(torch.float8_e4m3fn)}, "mean must be a tensor"),
    ({"best": 5}, r"best must be a tensor of the shape \(\), got 5"),
    ({"milestones": {"a": []}}, "milestones.a must be a number"),
)
def test_a_state_is_like_that_of_a_new_object_or_the_message_says_where_not(change, problem):
    with pytest.raises(MisfitError, match=problem) if problem else nullcontext():
        require_like(EXAMPLE | change, EXAMPLE)


def test_a_state_without_a_part_is_refused():
    with pytest.raises(MisfitError, match="rate is missing"):
        require_like({name: EXAMPLE[name] for name in EXAMPLE if name != "rate"}, EXAMPLE)
