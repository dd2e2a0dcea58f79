"""Mean and standard deviation over runs that differ in their seed: ``python docs/seeds.py runs/NAME_*``."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def training_seconds(run: Path) -> float:
    """From the start of the first step to the end of the last validation, as TensorBoard's files have it."""
    curves: Any = EventAccumulator(str(run))  # type: ignore[no-untyped-call]
    curves.Reload()
    return float(curves.Scalars("val/loss")[-1].wall_time - curves.Scalars("learning_rate/pg1")[0].wall_time)


def line(name: str, values: list[float]) -> str:
    """Mean, standard deviation, smallest and largest value."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{name:20} {statistics.mean(values):8.2f} ± {spread:.2f}  ({min(values):.2f} to {max(values):.2f})"


def main(runs: list[Path]) -> None:
    """Prints a line for each figure."""
    figures = [json.loads((run / "metrics.json").read_text()) for run in runs]
    print(f"n = {len(runs)}")
    for split in ("val", "test"):
        print(line(f"{split} accuracy, %", [100 * figure[split]["accuracy"] for figure in figures]))
    print(line("training, seconds", [training_seconds(run) for run in runs]))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
