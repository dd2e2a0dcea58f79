"""A checkpoint with a value of another type is opened, or refused in one line."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.cli._entry import describe_error
from lightkeeper.images import _checkpoint as checkpoint_module

from tests.toy import LAST, ToyClassifier, ToyData, load, stop_at

GONE = object()
OTHERS = (
    *(None, 5, 0.5, -1, "text", [1], {"a": 1}, GONE),
    *(torch.zeros(1), torch.zeros(3).to(torch.float8_e4m3fn)),
)
READ = ("about", "hyper_parameters", "state_dict")
Place = tuple[Any, ...]


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """The places of all values in a nested structure, of whole lists and dicts, too."""
    if place:
        yield place
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from places(part, (*place, key))


def edited(content: Any, place: Place, other: object) -> Any:
    """A copy with another value at a place, or without it."""
    copied = part = deepcopy(content)
    for key in place[:-1]:
        part = part[key]
    if other is GONE:
        del part[place[-1]]
    else:
        part[place[-1]] = other
    return copied


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """The last checkpoint of a stopped run."""
    root: Path = tmp_path_factory.mktemp("edited") / "runs"
    stop_at(6, f"--trainer.default_root_dir={root}")
    return root / LAST.relative_to("runs")


def require_one_line(use, place: Place, other: object) -> bool:
    """Uses a file; True if that worked, False if it ended with an error of one line."""
    try:
        use()
    except Exception as error:
        if describe_error(error) is None:
            error.add_note(f"with {other} at {place}")
            raise
        return False
    return True


def pretend(monkeypatch, path: Path, content: Any) -> None:
    """Lets a file have this content, which is written and read in no time."""
    read = checkpoint_module._read
    monkeypatch.setattr(
        checkpoint_module,
        "_read",
        lambda file: deepcopy(content) if Path(file) == path else read(file),
    )


def test_a_checkpoint_with_another_value_opens_or_is_refused_in_one_line(path, monkeypatch):
    content = load(path)
    outcomes: list[bool] = []

    def use() -> None:
        ToyClassifier.load_from_checkpoint(path)
        ToyData.load_from_checkpoint(path).setup("test")

    for place in [place for place in places(content) if place[0] in READ]:
        for other in OTHERS[len(outcomes) % 3 :: 3]:
            if place[-1] == "size" and other == -1:
                continue  # the data's own, and it does not check it
            with monkeypatch.context() as patch:
                pretend(patch, path, edited(content, place, other))
                outcomes.append(require_one_line(use, place, other))
    assert {*outcomes} == {True, False}
