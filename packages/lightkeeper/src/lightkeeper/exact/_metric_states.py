"""States of metrics within an epoch, of every process, as a checkpoint has them.

Neither Lightning nor torchmetrics saves them: the mean over an epoch in which a run resumes would
be one over what is left of it.
"""

from collections.abc import Iterator
from typing import TypeVar

import torch
from lightning.pytorch import Trainer
from torch import Tensor, distributed, nn
from torchmetrics import Metric, MetricCollection

from ._upstream import set_update_count

T = TypeVar("T")
State = dict[str, Tensor]
"""Tensors by their names."""
States = dict[str, State]
"""The states of metrics by their names."""

_UPDATES = "update_count"


def gather(value: T) -> list[T]:
    """Returns the value of each process; all processes must call this."""
    if not distributed.is_initialized():
        return [value]
    values: list[T] = [value] * distributed.get_world_size()
    # Lightning's and torchmetrics' take tensors, which all processes must have
    distributed.all_gather_object(values, value)
    return values


def shares_of(trainer: Trainer, shares: list[T]) -> list[T]:
    """Returns this process's share; of another number of processes, the first one takes all."""
    if len(shares) == trainer.world_size:
        return [shares[trainer.global_rank]]
    return shares if trainer.is_global_zero else []


def save_metrics(module: nn.Module) -> list[States]:
    """Returns the states of a module's metrics in each process; all processes must call this."""
    for part in module.modules():
        if isinstance(part, MetricCollection):
            part.items()  # those of a compute group get the state that one of them has
    return gather({name: _state_of(metric) for name, metric in _updated(module)})


def load_metrics(trainer: Trainer, module: nn.Module, saved: list[States]) -> None:
    """Restores the states that a checkpoint has, in place of those that there are."""
    parts = dict(module.named_modules())
    for _, metric in _updated(module):
        metric.reset()
    for states in shares_of(trainer, saved):
        for name, state in states.items():
            if isinstance(part := parts.get(name), Metric):
                _add(part, state)


def cpu_copies(state: State) -> State:
    """Returns copies of tensors on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in state.items()}


def _updated(module: nn.Module) -> Iterator[tuple[str, Metric]]:
    for name, part in module.named_modules():
        if isinstance(part, Metric) and part.update_called:
            yield name, part


def _state_of(metric: Metric) -> State:
    """Returns a metric's tensors; the tensors of a list as one, unless there are none."""
    state = {_UPDATES: torch.tensor(metric.update_count)}
    for key, value in metric.metric_state.items():
        if isinstance(value, Tensor):
            state[key] = value
        elif value:
            state[key] = torch.cat([part.view(-1, *part.shape[1:]) for part in value])
    return cpu_copies(state)


def _add(metric: Metric, state: State) -> None:
    """Sets a metric's state, or merges that of a rank that no longer exists into it."""
    has_shapes = (
        key in state and state[key].shape == value.shape
        for key, value in metric.metric_state.items()
        if isinstance(value, Tensor)
    )
    if _UPDATES not in state or not all(has_shapes):  # of another version of the metric
        return
    values = {
        key: [state[key]] if isinstance(value, list) else state[key]
        for key, value in metric.metric_state.items()
        if key in state
    }
    count = metric.update_count + int(state[_UPDATES])
    if metric.update_called:
        metric.merge_state(metric.metric_state | values)
    else:
        for key, part in values.items():
            setattr(metric, key, part)
    set_update_count(metric, count)
