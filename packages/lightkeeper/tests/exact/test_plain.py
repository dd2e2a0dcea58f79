"""Values of a checkpoint: plain when written, and not walked for ever when read."""

import enum
import functools
import io
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from jsonargparse.typing import PositiveInt
from lightkeeper.exact._plain import MisfitError, plain

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
