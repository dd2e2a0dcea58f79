"""Draws validation accuracy over training time: ``python docs/time_to_accuracy.py PICTURE runs/ONE_* runs/OTHER_*``.

Runs whose names differ after the last ``_`` alone, as by their seed, are one way to train: a line for their mean.
"""

import statistics
import sys
from itertools import groupby
from pathlib import Path

from matplotlib.figure import Figure
from seeds import Curve, curve


def seconds_to(accuracy: float, run: Curve) -> float | None:
    """When a run first validated with that accuracy, if it did."""
    return next((seconds for seconds, reached in run if reached >= accuracy), None)


def table(ways: dict[str, list[Curve]]) -> str:
    """How long each way takes to accuracies that all of its runs reach, and where it ends."""
    best = min(max(reached for _, reached in run) for runs in ways.values() for run in runs)
    lines = []
    for name, runs in ways.items():
        for accuracy in (step / 20 for step in range(8, 20) if step / 20 <= best):
            times = [seconds for run in runs if (seconds := seconds_to(accuracy, run)) is not None]
            lines.append(f"{name:20} {accuracy:.0%} after {_spread(times, 0)} s")
        lines.append(
            f"{name:20} ends with {_spread([100 * run[-1][1] for run in runs], 1)}% after"
            f" {_spread([run[-1][0] for run in runs], 0)} s (n = {len(runs)})"
        )
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def draw(ways: dict[str, list[Curve]]) -> Figure:
    """A line for the mean of each way's runs, between their extremes."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, runs in ways.items():
        epochs = list(zip(*runs, strict=True))
        seconds = [statistics.mean(run[0] for run in epoch) for epoch in epochs]
        reached = [[100 * run[1] for run in epoch] for epoch in epochs]
        (line,) = axes.plot(seconds, [statistics.mean(values) for values in reached], marker=".", label=name)
        lowest, highest = [min(values) for values in reached], [max(values) for values in reached]
        axes.fill_between(seconds, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="training time in seconds", ylabel="validation accuracy in %", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    return figure


def main(plot: Path, runs: list[Path]) -> None:
    """Prints the table and writes the plot."""
    grouped = groupby(sorted(runs), key=lambda run: run.name.rpartition("_")[0])
    ways = {name: [curve(run) for run in members] for name, members in grouped}
    print(table(ways))
    draw(ways).savefig(plot, dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(argument) for argument in sys.argv[2:]])
