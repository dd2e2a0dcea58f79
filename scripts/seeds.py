"""Mean and standard deviation over runs that differ in their seed or fold: ``python scripts/seeds.py runs/NAME_*``."""

import statistics
import sys
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from lightkeeper.cli import read_metrics, run_command
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Curve = list[tuple[float, float]]
"""Seconds since the first batch, and validation accuracy, at the end of each validation."""


def curve(run: Path) -> Curve:
    """Reads a run's TensorBoard files; time counts from the plot of the first batch, without which the curve is empty."""
    events = _events(run)
    if "train/first_batch" not in events.Tags()["images"]:
        return []
    start = events.Images("train/first_batch")[0].wall_time
    return [(event.wall_time - start, event.value) for event in _points(events, "val/accuracy")]


def steady(run: Path) -> float:
    """Returns the seconds that all steps take at the pace between the first and the last logged one, so without compiling."""
    logged = _points(_events(run), "train/loss")
    first, last = logged[0], logged[-1]
    return float(
        (last.wall_time - first.wall_time) / max(1, last.step - first.step) * (last.step + 1)
    )


def _points(events: Any, name: str) -> list[Any]:
    """Returns a curve in the order of its steps; files are read by the times in their names."""
    return sorted(events.Scalars(name), key=attrgetter("step"))


@cache
def _events(run: Path) -> Any:
    events: Any = EventAccumulator(str(run))  # type: ignore[no-untyped-call]
    return events.Reload()


def line(name: str, values: list[float]) -> str:
    """Formats mean, standard deviation, smallest and largest value."""
    spread = (
        f" ± {statistics.stdev(values):.2f}  ({min(values):.2f} to {max(values):.2f})"
        if len(values) > 1
        else ""
    )
    return f"{name:20} {statistics.mean(values):8.2f}{spread}"


def main(runs: list[Path]) -> None:
    """Prints a line for each metric."""
    if not runs:
        sys.exit("usage: python scripts/seeds.py RUN..., folders of finished runs")
    results = [read_metrics(run) for run in runs]
    print(f"n = {len(runs)}")
    for split in ("val", "test"):
        print(
            line(f"{split} accuracy, %", [100 * metrics[split]["accuracy"] for metrics in results])
        )
    if all(curves := [curve(run) for run in runs]):
        print(line("training, seconds", [points[-1][0] for points in curves]))
        if all(paces := [steady(run) for run in runs]):  # 0 of a run that logged one step
            print(line("  at its pace later", paces))


if __name__ == "__main__":
    run_command(lambda: main([Path(argument) for argument in sys.argv[1:]]))
