"""Checks of what a run resumes from, before Lightning and torch take it over as it is."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import LBFGS, Adafactor, Optimizer

from ..exact._plain import MisfitError, inside, is_sound, require_fit
from ._checkpoint import damaged

_OTHER_SHAPES = (Adafactor, LBFGS)
"""Optimizers of torch whose states do not have the shapes of their parameters."""
_NUMBERS = ("step", "eta", "mu", "mu_product")
"""States of torch's optimizers that are one number for each parameter."""


class Resumable(TypedDict):
    """The types of what the command ``fit`` resumes."""

    epoch: int
    global_step: int
    loops: dict[str, dict[str, object]]
    callbacks: dict[str, object]
    optimizer_states: list[dict[str, object]]
    lr_schedulers: list[dict[str, object]]
    loggers: NotRequired[dict[str, dict[str, object]]]
    should_stop: bool
    newest_metrics: dict[str, float]


class _Group(TypedDict):
    params: list[int]


class _State(TypedDict):
    """The types of an optimizer's state."""

    state: dict[int, dict[str, object]]
    param_groups: list[_Group]


def require_optimizers(trainer: Trainer, states: Sequence[object]) -> None:
    """Requires states of the shapes of the parameters that the optimizers of a run have.

    torch compares no shapes, and its fused optimizers would write beyond the end of a tensor.
    """
    with damaged(f"'{trainer.ckpt_path}'", "does not fit this run"):
        if len(states) != len(trainer.optimizers):
            raise MisfitError(f"must be {len(trainer.optimizers)}", "optimizer_states")
        for place, optimizer in enumerate(trainer.optimizers):
            with inside("optimizer_states", place):
                _require_optimizer(states[place], optimizer)


def _require_optimizer(saved: Any, optimizer: Optimizer) -> None:
    """Requires the same parameters in each group, and states that fit them."""
    require_fit(saved, _State)
    groups = optimizer.state_dict()["param_groups"]
    numbers = [[*group["params"]] for group in groups]
    if [[*group["params"]] for group in saved["param_groups"]] != numbers:
        raise MisfitError("has other parameters", "param_groups")
    has_shapes = type(optimizer).__module__.startswith("torch.optim") and not isinstance(
        optimizer, _OTHER_SHAPES
    )
    for group, numbered in zip(optimizer.param_groups, numbers, strict=True):
        if has_shapes or group.get("fused"):
            for number, parameter in zip(numbered, group["params"], strict=True):
                with inside("state", number):
                    _require_shapes(saved["state"].get(number, {}), parameter)


def _require_shapes(state: Mapping[str, object], parameter: Tensor) -> None:
    for name, value in state.items():
        is_number = name in _NUMBERS and isinstance(value, int | float)
        fits = is_sound(value) and (
            value.numel() == 1 if name in _NUMBERS else value.shape == parameter.shape
        )
        if not (is_number or fits):
            raise MisfitError("does not have the shape of its parameter", name)
