"""Checks of what a run resumes from, before Lightning and torch take it over as it is."""

from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.optim import LBFGS, Adafactor, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..exact._checkpoint_io import Checkpoint
from ..exact._errors import first_sentence
from ..exact._plain import MisfitError, inside
from ..exact._upstream import callbacks_of
from ._checkpoint import damaged, read_checkpoint
from ._schema import Rule, is_sound, require_fit, require_like
from ._upstream import loop_values, progress_of

_OTHER_SHAPES = (Adafactor, LBFGS)
"""Optimizers of torch whose states do not have the shapes of their parameters."""
_NUMBERS = ("step", "eta", "mu", "mu_product")
"""States of torch's optimizers that are one number for each parameter."""
_OF_SCHEDULES = ("last_epoch", "base_lrs", "_last_lr", "_step_count")
"""What all schedules have."""
_MISFIT = "does not fit this run"

_Count = Annotated[int, Rule("a whole number from 0", lambda count: count >= 0)]
_FromZero = Annotated[
    Tensor, Rule("a number from 0", lambda x: is_sound(x) and x.numel() == 1 and x >= 0)
]


class _Facts(TypedDict):
    """The types of what a resumed run takes from a checkpoint's description, besides others."""

    processes: int


class _OfLoops(TypedDict):
    """The types of what an epoch has logged, and of the places of its loaders."""

    results: NotRequired[list[dict[str, dict[str, Tensor]]]]
    arguments: NotRequired[dict[str, dict[str, object]]]
    steps: NotRequired[dict[str, Tensor]]
    validated: NotRequired[dict[int, _Count]]
    combined_loader: NotRequired[list[object]]  # anything, of a loader of one's own


class _Kept(TypedDict):
    """What a ModelCheckpoint compares with, without which it would replace the best file."""

    best_model_score: object
    best_model_path: str


class Restorable(TypedDict):
    """The types of what a trainer restores."""

    about: _Facts
    epoch: _Count
    global_step: _Count
    loops: dict[str, dict[str, object]]
    callbacks: dict[str, object]
    optimizer_states: list[dict[str, object]]
    lr_schedulers: list[dict[str, object]]
    steps_saved: NotRequired[dict[str, _Count]]
    metric_states: NotRequired[list[dict[str, dict[str, Tensor]]]]
    gradients: NotRequired[list[dict[str, Tensor]]]
    buffers: NotRequired[list[dict[str, Tensor]]]


class _Resumable(Restorable):
    """The types of what the command ``fit`` resumes, which takes more from a checkpoint."""

    loggers: NotRequired[dict[str, dict[str, _Count | list[str]]]]
    should_stop: bool
    newest_metrics: dict[str, Tensor | float]


def read_resumable(path: Path) -> Checkpoint:
    """Reads a checkpoint that the command ``fit`` may resume from."""
    checkpoint = read_checkpoint(path)
    with damaged(f"'{path}'"):
        require_fit(checkpoint, _Resumable)
    return checkpoint


def require_restorable(trainer: Trainer, model: LightningModule, checkpoint: Checkpoint) -> None:
    """Requires what the loops, callbacks, precision and averages of a run can take over."""
    precision = trainer.precision_plugin
    weights = {name: x for name, x in model.state_dict().items() if isinstance(x, Tensor)}
    parts = {
        "current_model_state": weights,
        "averaging_state": {"n_averaged": torch.tensor(0)},
        type(precision).__qualname__: precision.state_dict(),
    }
    with damaged(f"'{trainer.ckpt_path}'", _MISFIT):
        require_fit(checkpoint, Restorable)
        progress = progress_of(trainer)
        require_like(checkpoint, progress | _common(parts, checkpoint))
        _require_counts(checkpoint, progress)
        with inside("values of its loops"):
            require_fit(loop_values(checkpoint), _OfLoops)
        for callback in callbacks_of(trainer):
            if (key := callback.state_key) in checkpoint["callbacks"]:
                with inside("callbacks", type(callback).__name__):
                    _require_state_of(callback, checkpoint["callbacks"][key])


def _require_counts(value: Any, example: Mapping[str, object]) -> None:
    """Requires whole numbers from 0 where an example has whole numbers."""
    for key, like in example.items():
        with inside(key):
            if isinstance(like, Mapping):
                _require_counts(value[key], like)
            elif isinstance(like, int) and not isinstance(like, bool):
                require_fit(value[key], _Count)


def _common(example: Mapping[str, object], names: Container[object]) -> dict[str, object]:
    """Returns the part of an example with these names; another version may save more or fewer."""
    return {name: value for name, value in example.items() if name in names}


def _require_state_of(callback: Callback, state: Any) -> None:
    """Requires a state of Lightning's callbacks; those of others know what they saved."""
    is_theirs = type(callback).load_state_dict.__module__.startswith("lightning.pytorch")
    if is_theirs or isinstance(callback, ModelCheckpoint):
        require_fit(state, _Kept if isinstance(callback, ModelCheckpoint) else dict)
        require_like(state, _common(callback.state_dict(), state))
    if is_theirs:
        _try_to_load(callback, state)


def _try_to_load(restored: Any, state: object) -> None:
    """Lets a copy load a state, which may be of the right types and have no meaning."""
    try:
        copy(restored).load_state_dict(state)
    except (LookupError, TypeError, ValueError) as error:
        raise MisfitError(f"cannot be restored ({first_sentence(error)})") from error


def require_optimizers(trainer: Trainer, states: Mapping[str, Sequence[Any]]) -> None:
    """Requires states that the optimizers and schedules of a run can take over, by their keys."""
    parts: dict[str, tuple[Sequence[object], Callable[..., None]]] = {
        "optimizer_states": (trainer.optimizers, _require_optimizer),
        "lr_schedulers": ([x.scheduler for x in trainer.lr_scheduler_configs], _require_schedule),
    }
    with damaged(f"'{trainer.ckpt_path}'", _MISFIT):
        for key, (own, require) in parts.items():
            if len(states[key]) != len(own):
                raise MisfitError(f"must be {len(own)}", key)
            for place, part in enumerate(own):
                with inside(key, place):
                    require(states[key][place], part)


def _require_optimizer(state: dict[str, Any], optimizer: Optimizer) -> None:
    """Requires the structure of an optimizer's groups, and states that fit its parameters."""
    groups = optimizer.state_dict()["param_groups"]
    require_like(state, {"state": {}, "param_groups": groups})
    has_shapes = type(optimizer).__module__.startswith("torch.optim") and not isinstance(
        optimizer, _OTHER_SHAPES
    )
    for place, (saved, group) in enumerate(
        zip(state["param_groups"], optimizer.param_groups, strict=True)
    ):
        if [*saved["params"]] != groups[place]["params"]:
            raise MisfitError("has other parameters", "param_groups", place)
        with inside("state"):
            states = {number: state["state"].get(number, {}) for number in saved["params"]}
            require_fit(states, dict[object, dict[str, object]])
            if has_shapes or group.get("fused"):  # which would write beyond the end of a tensor
                _require_shapes(states, group["params"])


def _require_shapes(states: dict[Any, dict[str, Any]], parameters: Sequence[Tensor]) -> None:
    """Requires the same names for all parameters that have a state, and tensors of their shapes."""
    names = dict.fromkeys(name for state in states.values() for name in state)
    for (number, state), parameter in zip(states.items(), parameters, strict=False):
        for name in names if state else ():
            value = state.get(name)
            with inside(number, name):
                if name in _NUMBERS:
                    require_fit(value, _FromZero)
                else:
                    require_like(value, parameter)


def _require_schedule(state: dict[str, object], schedule: LRScheduler) -> None:
    """Requires values like those of a new schedule, of which a class may keep more or fewer.

    Of a class of others, only what all schedules have: it alone knows the rest.
    """
    is_theirs = type(schedule).__module__.startswith(("torch.optim", "lightning.pytorch"))
    example = _common(schedule.state_dict(), state)
    require_like(state, example if is_theirs else _common(example, _OF_SCHEDULES))
    if is_theirs:
        _try_to_load(schedule, state)
