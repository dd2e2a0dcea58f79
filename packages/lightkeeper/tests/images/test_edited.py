"""A checkpoint with a value of another type is opened or resumed, or refused in one line."""

import random
import re
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from lightkeeper.cli._entry import describe_error
from lightkeeper.images import _checkpoint as checkpoint_module

from tests.toy import LAST, ToyClassifier, ToyData, fit, load, stop_at

GONE = object()
OTHERS = (
    *(None, 5, 0.5, -1, "text", [1], {"a": 1}, GONE),
    *(torch.zeros(1), torch.zeros(3).to(torch.float8_e4m3fn)),
)
READ = ("about", "hyper_parameters", "state_dict", "pytorch-lightning_version")
PLAIN: list[str] = []
MANY = [
    *("--model.optimizer=Adam", "--model.lr_scheduler=ReduceLROnPlateau"),
    *("--model.lr_scheduler.monitor=val/loss", "--trainer.callbacks+=EMAWeightAveraging"),
    *("--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/loss"),
]
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


def of_each_kind(every: list[Place], seed: int) -> list[tuple[Place, object]]:
    """A place of each kind, of weights and counters by their last name, with another value."""
    dice = random.Random(seed)
    dice.shuffle(every)
    kinds = {(place[0], len(place), re.sub(r"\d+", "", str(place[-1]))): place for place in every}
    return [(place, dice.choice(OTHERS)) for place in kinds.values()]


pytestmark = pytest.mark.filterwarnings(
    "ignore:The checkpoint was not created with WeightAveraging",  # without one of its keys
    "ignore:Be aware that when using `ckpt_path`",  # with other names of callbacks
)


@pytest.fixture(scope="module")
def stopped(request, tmp_path_factory) -> tuple[Path, list[str]]:
    """The folder of a stopped run with some options, and these."""
    root: Path = tmp_path_factory.mktemp("edited") / "runs"
    stop_at(6, f"--trainer.default_root_dir={root}", *request.param)
    (root / "run" / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)
    return root, request.param


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


@pytest.mark.parametrize("stopped", [PLAIN], indirect=True, ids=["plain"])
def test_a_checkpoint_with_another_value_opens_or_is_refused_in_one_line(stopped, monkeypatch):
    path = stopped[0] / "run" / "checkpoints" / "last.ckpt"
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


@pytest.mark.parametrize(
    ("stopped", "most"),
    [
        pytest.param(PLAIN, 10, id="plain, some"),
        pytest.param(PLAIN, None, id="plain", marks=pytest.mark.slow),
        pytest.param(MANY, None, id="many", marks=pytest.mark.slow),
    ],
    indirect=["stopped"],
)
def test_a_run_resumes_from_a_checkpoint_with_another_value_or_refuses_it_in_one_line(
    stopped, most, workplace, monkeypatch
):
    root, flags = stopped
    content = load(root / "run" / "checkpoints" / "last.ckpt")
    edits = [edit for seed in (1, 0) for edit in of_each_kind([*places(content)], seed)]
    outcomes = set()
    for place, other in edits if most is None else random.Random(2).sample(edits, most):
        shutil.rmtree("runs", ignore_errors=True)
        shutil.copytree(root, "runs")
        with monkeypatch.context() as patch:
            pretend(patch, LAST, edited(content, place, other))
            resume = lambda: fit("--trainer.default_root_dir=runs", *flags)  # noqa: E731
            outcomes.add(require_one_line(resume, place, other))
    assert outcomes == {True, False}
