"""States of metrics within an epoch, of every process, as a checkpoint has them.

Neither Lightning nor torchmetrics saves them: the mean over an epoch in which a run resumes would
be one over what is left of it.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar, cast

import torch
from lightning.pytorch import Trainer
from torch import Tensor, distributed, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.retrieval import RetrievalPrecisionRecallCurve
from torchmetrics.retrieval.base import RetrievalMetric
from torchmetrics.wrappers import MetricTracker, MinMaxMetric, Running
from torchmetrics.wrappers.abstract import WrapperMetric

from ._errors import note
from ._upstream import cannot_merge, merge_into, set_update_count

T = TypeVar("T")
State = dict[str, Tensor]
"""Tensors by their names."""
States = dict[str, State]
"""The states of metrics by their names."""

_UPDATES = "update_count"
_STEPS = "n_steps"
_UNDECLARED: dict[type[Metric], tuple[str, ...]] = {
    MinMaxMetric: ("min_val", "max_val"),
    Running: ("_num_vals_seen",),
}
"""Attributes that metrics change in updates, but do not declare by ``add_state``."""


def gather(value: T) -> list[T]:
    """Returns the value of each process; all processes must call this."""
    if not distributed.is_initialized():
        return [value]
    values: list[T] = [value] * distributed.get_world_size()
    # Lightning's and torchmetrics' take tensors, which all processes must have
    distributed.all_gather_object(values, value)
    return values


def shares_of(trainer: Trainer, shares: list[T]) -> list[T]:
    """Returns this process's share; if the number of processes changed, the first one takes all."""
    if len(shares) == trainer.world_size:
        return [shares[trainer.global_rank]]
    return shares if trainer.is_global_zero else []


def save_metrics(module: nn.Module, left_out: Iterable[str] = ()) -> list[States]:
    """Returns the states of a module's metrics in each process; all processes must call this.

    Those that are ``left_out`` by name begin anew where they are loaded.
    """
    for part in module.modules():
        if isinstance(part, MetricCollection):
            part.items()  # those of a compute group get the state that one of them has
    prefixes = tuple(f"{name}." for name in left_out)  # with metrics that a metric has
    states = {
        name: _state_of(metric)
        for name, metric in _updated_metrics(module)
        if not f"{name}.".startswith(prefixes)
    }
    for name, part in module.named_modules():
        if isinstance(part, MetricTracker):
            states[name] = {_STEPS: torch.tensor(part.n_steps)}
    return gather(states)


def load_metrics(trainer: Trainer, module: nn.Module, saved: list[States]) -> None:
    """Restores the states that a checkpoint has, in place of those that there are."""
    _restore_steps(module, saved)
    parts = {name: part for name, part in module.named_modules() if isinstance(part, Metric)}
    saved_names = {name for states in saved for name in states}
    for name in parts.keys() & (saved_names | {name for name, _ in _updated_metrics(module)}):
        parts[name].reset()  # also what the weights have brought, of which a process has a part
    restored: set[str] = set()
    for states in shares_of(trainer, saved):
        for name, state in states.items():
            if (part := parts.get(name)) is None:
                continue
            # the metrics of a wrapper are in the states, too
            is_merged = name in restored and not isinstance(part, WrapperMetric)
            if not _fits(part, state) or (is_merged and cannot_merge(part)):
                if trainer.is_global_zero:
                    note(
                        f"what {name} had counted in this epoch is left out: it is of another"
                        " version, or cannot be merged with another process's"
                    )
                continue
            if is_merged:
                _merge(part, state)
            elif name not in restored:
                _set(part, state)
            restored.add(name)


def _restore_steps(module: nn.Module, saved: list[States]) -> None:
    """Gives trackers as many metrics as they had."""
    for name, part in [*module.named_modules()]:
        if isinstance(part, MetricTracker):
            steps = [
                int(states[name][_STEPS]) for states in saved if _STEPS in states.get(name, {})
            ]
            for _ in range(part.n_steps, max(steps, default=0)):
                part.increment()


def join_retrieved(module: nn.Module) -> None:
    """Joins what each retrieval metric keeps of its batches.

    torchmetrics gathers these lists part by part, of which all processes must have as many.
    """
    for part in module.modules():
        if isinstance(part, RetrievalMetric | RetrievalPrecisionRecallCurve):
            for name, parts in part.metric_state.items():
                setattr(part, name, [torch.cat(cast(list[Tensor], parts))] if parts else [])


def cpu_copies(state: State) -> State:
    """Returns copies of tensors on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def _updated_metrics(module: nn.Module) -> Iterator[tuple[str, Metric]]:
    """Yields the metrics that may have a state to save, by their names."""
    for name, part in module.named_modules():
        # torchmetrics does not count the updates of wrappers
        if isinstance(part, Metric) and (part.update_called or isinstance(part, WrapperMetric)):
            yield name, part


def _state_of(metric: Metric) -> State:
    """Returns a metric's tensors; of a list each by itself, as some metrics count them."""
    state = {_UPDATES: torch.tensor(metric.update_count)}
    for key, value in metric.metric_state.items():
        if isinstance(value, list):
            state |= {f"{key}.{place}": part for place, part in enumerate(value)}
        else:
            state[key] = value
    state |= {name: torch.as_tensor(getattr(metric, name)) for name in _undeclared(metric)}
    return cpu_copies(state)


def _undeclared(metric: Metric) -> Iterator[str]:
    for cls, names in _UNDECLARED.items():
        if isinstance(metric, cls):
            yield from names


def _fits(metric: Metric, state: State) -> bool:
    """Returns False for the state of another version of the metric; a state may have grown."""
    return _UPDATES in state and all(
        key in state and _broadcasts_to(value.shape, state[key].shape)
        for key, value in metric.metric_state.items()
        if isinstance(value, Tensor)
    )


def _broadcasts_to(shape: torch.Size, other: torch.Size) -> bool:
    """Returns True if a shape broadcasts to another, as a state does when an update is added."""
    ends = zip(reversed(shape), reversed(other), strict=False)
    return len(shape) <= len(other) and all(side in (1, wide) for side, wide in ends)


def _set(metric: Metric, state: State) -> None:
    """Sets a metric's state."""
    for key, part in _values(metric, state).items():
        setattr(metric, key, part)
    for name in _undeclared(metric):
        if name in state:
            kind = type(getattr(metric, name))
            setattr(metric, name, state[name] if kind is Tensor else kind(state[name]))
    set_update_count(metric, int(state[_UPDATES]))


def _merge(metric: Metric, state: State) -> None:
    """Merges the state of a rank that no longer exists into a metric."""
    count = metric.update_count + int(state[_UPDATES])
    merge_into(metric, metric.metric_state | _values(metric, state))
    set_update_count(metric, count)


def _values(metric: Metric, state: State) -> dict[str, Tensor | list[Tensor]]:
    """Returns the values of a state by their names; lists from earlier versions are one tensor."""
    return {
        key: state[key]
        if isinstance(value, Tensor)
        else [part for name, part in state.items() if name.partition(".")[0] == key]
        for key, value in metric.metric_state.items()
    }
