"""What a sweep has found: a table, a CSV, and the best run."""

import csv
import json
import shlex
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from project.analysis.tables import metrics_table
from project.engine.errors import printable
from project.engine.run.folder import RunFolder
from project.engine.run.whole_file import whole_file
from project.engine.training.monitor import Monitor
from project.search.plots import sweep_figure
from project.search.space import spelt
from project.search.study import ERROR, SharedStudy
from project.search.trial import trial_name

_STATES = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def conclude(shared: SharedStudy, monitor: Monitor) -> str:
    """Writes ``trials.csv`` and ``sweep.png`` into the sweep's folder.

    Args:
        shared: The study, of which other processes may write the same at the same time.
        monitor: What its trials are judged by.

    Returns:
        The table of all trials and what to know of the best, whose test metrics alone are shown: trials are chosen on the
        validation set.
    """
    written = [shared.folder / "trials.csv"]
    with shared.alone():
        trials = _ranked(shared.study.get_trials(deepcopy=False), monitor)
        rows = _rows(trials, list(shared.space.options), monitor)
        with whole_file(written[0]) as partial, open(partial, "w", newline="") as file:
            csv.writer(file).writerows(rows)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if complete:
            written.append(shared.folder / "sweep.png")
            with whole_file(written[-1]) as partial:
                sweep_figure(shared.study, shared.space, monitor).savefig(partial)
    files = f"  table, plots      {', '.join(map(str, written))}"
    best = _best(shared, complete[0]) if complete else "  no trial is complete"
    return "\n".join(["", _table(rows), "", best, files])


def readable(value: Any) -> str:
    """A value with as many digits as a person compares."""
    return f"{value:.4g}" if isinstance(value, float) else spelt(value)


def _ranked(trials: list[FrozenTrial], monitor: Monitor) -> list[FrozenTrial]:
    """The best first, then pruned and failed ones."""
    sign = -1 if monitor.mode == "max" else 1
    order = list(_STATES)

    def rank(trial: FrozenTrial) -> tuple[int, bool, float, int]:
        return order.index(trial.state), trial.value is None, sign * (trial.value or 0.0), trial.number

    return sorted(trials, key=rank)


def _rows(trials: list[FrozenTrial], options: list[str], monitor: Monitor) -> list[list[str]]:
    heading = ["trial", "state", monitor.monitor, "validations", *options, "error"]
    rows = [heading]
    for trial in trials:
        value = "" if trial.value is None else readable(trial.value)
        params = [readable(trial.params.get(option, "")) for option in options]
        error = printable(trial.user_attrs.get(ERROR, ""))
        rows.append(
            [str(trial.number), _STATES[trial.state], value, str(len(trial.intermediate_values)), *params, error]
        )
    return rows


def _table(rows: list[list[str]]) -> str:
    """Columns as wide as they need to be; an error, the last column, has its own line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for position, (*cells, error) in enumerate(rows):
        lines.append("  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
        if error and position:
            lines.append(f"    {error}")
    return "\n".join(lines)


def _best(shared: SharedStudy, trial: FrozenTrial) -> str:
    """The best trial's metrics, its checkpoint, and the command that repeats it."""
    run = RunFolder(shared.folder, trial_name(trial.number))
    metrics = json.loads(run.metrics.read_text()) if run.metrics.exists() else None  # its folder may be gone
    table = metrics_table({"validation": metrics["val"], "test": metrics["test"]}) if metrics else "  (removed)"
    arguments = [*shared.space.arguments(trial.params), f"--name={shared.folder.name}_best"]
    return "\n".join(
        [
            f"  best: trial {trial.number}, chosen on the validation set; no other trial's test metrics are shown",
            "",
            table,
            "",
            f"  checkpoint        {run.best}",
            f"  to repeat it      python -m project.fit {shlex.join(arguments)}",
        ]
    )
