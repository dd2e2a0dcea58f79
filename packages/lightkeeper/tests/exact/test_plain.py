"""Values of a checkpoint: plain when written, and of the types that their places demand when read."""

import enum
import functools
import io
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
import pytest
import torch
from jsonargparse.typing import ClosedUnitInterval, PositiveInt
from lightkeeper.exact._plain import (
    MisfitError,
    plain,
    require_fit,
    require_tree,
)

from tests.toy import cases


class Pair(NamedTuple):
    first: int
    second: Any


class Colour(str, enum.Enum):  # noqa: UP042  # whose str() is its name
    RED = "red"


class Attributes(dict[str, Any]):
    """As Lightning's hparams are."""


def read_back(value: object) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@cases(
    "value expected",
    (np.int64(3), 3),
    (np.float32(0.5), 0.5),
    (np.longdouble(0.25), 0.25),
    (np.bool_(True), True),
    (np.str_("daisy"), "daisy"),
    (PositiveInt(3), 3),
    (Colour.RED, "red"),
    (Path("photos"), "photos"),
    (Pair(1, np.int8(2)), (1, 2)),
    (Attributes(rate=[np.float64(0.1)]), {"rate": [0.1]}),
    ({np.str_("a"): {np.int16(1): None}}, {"a": {1: None}}),
    (range(3), [0, 1, 2]),
)
def test_a_value_is_written_as_what_torch_reads(value, expected):
    written = plain(value)
    assert written == expected == read_back(written)
    assert str(written) == str(expected)  # no subclass, which would print otherwise


def test_what_is_plain_stays_the_object_that_it_is():
    weights = OrderedDict(a=torch.zeros(2), b=torch.ones(1))
    weights._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]  # as torch's have
    whole = {"weights": weights, "other": [1, (2.0, "x"), {3}, Counter("aab"), torch.float32]}
    assert plain(whole) is whole
    partly = plain({"weights": weights, "other": [np.int64(1)]})
    assert partly["weights"] is weights
    assert type(partly["other"][0]) is int


@cases(
    "value problem",
    (len, "is a builtin_function_or_method"),
    ({"a": [0, {"b": functools.partial(print)}]}, "a.1.b is a partial"),
    ([np.zeros(2)], "0 is a ndarray"),
    ([b"bytes"], "0 is a bytes"),
    ({"day": np.datetime64("2026-01-01")}, "day is a datetime64"),
)
def test_what_is_not_plain_is_named_with_its_place(value, problem):
    with pytest.raises(MisfitError) as error:
        plain(value)
    assert str(error.value) == problem


def nest(depth: int, width: int) -> list[Any]:
    nested: list[Any] = [0] * width
    for _ in range(depth):
        nested = [nested] * width
    return nested


def looped() -> dict[str, Any]:
    inner: dict[str, Any] = {"list": []}
    inner["list"].append(inner)
    return inner


@cases(
    "make problem",
    (lambda: {"a": nest(9, 9)}, "too often"),  # 9^10 numbers, which a test's name would be made of
    (lambda: {"a": {"b": (nest(7, 10),)}}, "too often"),
    (lambda: {"a": looped()}, "inside each other"),
    (lambda: nest(1000, 1), "inside each other"),
)
def test_what_would_be_walked_for_ever_is_refused_at_once(make, problem):
    with pytest.raises(MisfitError, match=problem):
        require_tree(make())


def test_lists_that_occur_several_times_as_in_real_checkpoints_are_not_refused():
    names = [str(number) for number in range(300_000)]
    require_tree({"about": {"names": names, "again": names}, "options": {"names": names}})
    require_tree([[0.9, 0.999]] * 1000)
    require_tree(5)


class Inner(TypedDict):
    number: float
    texts: NotRequired[list[str]]


class Outer(TypedDict):
    inner: Inner | None
    mode: Literal["a", "b"]
    count: int


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
    ({"count": 0.5}, "count must be a whole number, got 0.5"),
)
def test_a_value_fits_a_typed_dict_or_the_message_says_where_not(change, problem):
    if problem is None:
        require_fit(SOUND | change, Outer)
        return
    with pytest.raises(MisfitError) as error:
        require_fit(SOUND | change, Outer)
    assert str(error.value) == problem


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
