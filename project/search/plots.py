"""The plot of a sweep, drawn with matplotlib."""

from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from optuna import Study
from optuna.distributions import CategoricalDistribution
from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState

from project.analysis.plots import short
from project.engine.training.monitor import Monitor
from project.search.space import Space, spelt

_COLUMNS = 3
_ENOUGH = 4  # completed trials, below which importances say nothing


def sweep_figure(study: Study, space: Space, monitor: Monitor) -> Figure:
    """Draws the sweep's history, and each option's values against what they gave.

    Args:
        study: With at least one complete trial.
        space: Its options.
        monitor: What its trials are judged by.
    """
    complete = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
    pruned = study.get_trials(deepcopy=False, states=[TrialState.PRUNED])
    pruned = [trial for trial in pruned if trial.value is not None]  # Optuna keeps no NaN
    importances = get_param_importances(study) if len(complete) >= _ENOUGH and len(space.options) > 1 else {}
    count = 1 + len(space.options)
    columns, rows = min(count, _COLUMNS), -(-count // _COLUMNS)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained", dpi=110)
    history = figure.add_subplot(rows, columns, 1)
    history.set_title("history", fontsize=10)
    history.set_xlabel("trial")
    _scatter(history, [trial.number for trial in complete], complete, "complete", "C0")
    _scatter(history, [trial.number for trial in pruned], pruned, "pruned", "0.6")
    best = accumulate((_value(trial) for trial in complete), {"min": min, "max": max}[monitor.mode])
    history.step([trial.number for trial in complete], list(best), where="post", color="C1", label="best so far")
    history.xaxis.set_major_locator(MaxNLocator(integer=True))
    history.legend(fontsize=8)
    history.set_ylabel(monitor.monitor)
    for position, (name, values) in enumerate(space.options.items(), start=2):
        axes = figure.add_subplot(rows, columns, position, sharey=history)
        axes.set_xlabel(short(name, length=40))
        if name in importances:
            axes.set_title(f"importance {importances[name]:.0%}", fontsize=10)
        if isinstance(values, CategoricalDistribution):
            axes.set_xticks(range(len(values.choices)), [short(spelt(choice)) for choice in values.choices])
            axes.set_xlim(-0.5, len(values.choices) - 0.5)
        elif getattr(values, "log", False):
            axes.set_xscale("log")
            wide = values.high > 100 * values.low  # type: ignore[attr-defined]  # no choices, so a range
            axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        for trials, colour in ((pruned, "0.6"), (complete, "C0")):
            _scatter(axes, [_position(trial.params[name], values) for trial in trials], trials, None, colour)
    return figure


def _position(value: Any, values: object) -> Any:
    return values.choices.index(value) if isinstance(values, CategoricalDistribution) else value


def _scatter(axes: Axes, x: list[Any], trials: list[FrozenTrial], label: str | None, colour: str) -> None:
    if trials:
        axes.scatter(x, [_value(trial) for trial in trials], s=18, color=colour, label=label)


def _value(trial: FrozenTrial) -> float:
    """What a trial has reached; a pruned one, where it was pruned."""
    assert trial.value is not None
    return trial.value
