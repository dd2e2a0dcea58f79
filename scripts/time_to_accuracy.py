"""Draws validation accuracy over training time: ``python scripts/time_to_accuracy.py PLOT runs/ONE_* runs/OTHER_*``.

Runs whose names differ after the last ``_`` alone, as by their seed, are one way to train: a line for their mean.
``--steps`` draws over optimizer steps, for runs whose time something else has disturbed.
"""

import argparse
import statistics
from itertools import groupby
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from seeds import Curve, curve


def reached_at(accuracy: float, run: Curve) -> float | None:
    """Returns the time at which a run first validated with that accuracy, if it did."""
    return next((when for when, reached in run if reached >= accuracy), None)


def table(ways: dict[str, list[Curve]], unit: str) -> str:
    """Formats the time that each way takes to accuracies that all runs reach, and its last accuracy."""
    best = min(max(reached for _, reached in run) for runs in ways.values() for run in runs)
    lines = []
    for name, runs in ways.items():
        for accuracy in (step / 20 for step in range(8, 20) if step / 20 <= best):
            times = [when for run in runs if (when := reached_at(accuracy, run)) is not None]
            lines.append(f"{name:20} {accuracy:.0%} after {_spread(times, 0)} {unit}")
        lines.append(
            f"{name:20} ends with {_spread([100 * run[-1][1] for run in runs], 1)}% after"
            f" {_spread([run[-1][0] for run in runs], 0)} {unit} (n = {len(runs)})"
        )
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def draw(ways: dict[str, list[Curve]], label: str) -> Figure:
    """Draws a line for the mean of each way's runs, between their extremes."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, runs in ways.items():
        epochs = list(zip(*runs, strict=True))
        times = [statistics.mean(run[0] for run in epoch) for epoch in epochs]
        reached = [[100 * run[1] for run in epoch] for epoch in epochs]
        (line,) = axes.plot(times, [statistics.mean(values) for values in reached], marker=".", label=name)
        lowest, highest = [min(values) for values in reached], [max(values) for values in reached]
        axes.fill_between(times, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=label, ylabel="validation accuracy in %", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure


def main(args: list[str] | None = None) -> None:
    """Prints the table and writes the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plot", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--steps", action="store_true")
    given = parser.parse_args(args)
    grouped = groupby(sorted(given.runs), key=lambda run: run.name.rpartition("_")[0])
    ways = {name: [curve(run, given.steps) for run in members] for name, members in grouped}
    print(table(ways, "steps" if given.steps else "s"))
    with style.context(Path(__file__).with_name("pages.mplstyle")):
        draw(ways, "optimizer steps" if given.steps else "training time in seconds").savefig(given.plot, dpi=100)


if __name__ == "__main__":
    main()
