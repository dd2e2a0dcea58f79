"""Trains with several seeds and sums up: ``python scripts/repeat.py NAME --seeds 5 OPTIONS``, those of project.fit.

With ``--fractions 0.1,0.3,1``, it does so on these shares of the training images, and draws test accuracy by their number in
``runs/NAME/images.png``. The same command resumes: finished runs are left as they are.
"""

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pandas as pd
from jsonargparse.typing import PositiveInt
from lightkeeper.cli import RunFolder, run_command
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from training import train

from project.analysis.comparison import (
    formatted,
    interval,
    read_runs,
    readable,
    seed_groups,
    summary,
)


def train_all(folder: Path, seeds: int, fractions: list[float], options: list[str]) -> list[str]:
    """Trains what is not finished, and returns all runs."""
    runs = []
    for fraction in fractions:
        for seed in range(seeds):
            share = [f"--data.train_fraction={fraction}"] if fraction != 1 else []
            name = f"{fraction:g}_{seed}" if len(fractions) > 1 else f"{seed}"
            train(folder / name, [*options, *share, f"--seed_everything={seed}"])
            runs.append(str(folder / name))
    return runs


def images_figure(metrics: pd.DataFrame, images: pd.Series) -> Figure:
    """Draws test accuracy by the number of training images, with 95% intervals."""
    figure = Figure(figsize=(6, 4), layout="constrained", dpi=110)
    axes = figure.add_subplot(xscale="log", xlabel="training images", ylabel="test accuracy")
    points = metrics["test/accuracy"].groupby(images.astype(int))
    means = points.mean()
    axes.plot(means.index, means, "o-")
    total = metrics["total"].iloc[0]
    for count, values in points:
        axes.vlines(count, *np.clip(interval([*values], total), 0, 1))
    axes.set_xticks(means.index, [f"{count:,}" for count in means.index])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    return figure


def main(name: str, seeds: int, fractions: list[float], options: list[str]) -> None:
    """Trains, prints mean and deviation over seeds, and draws accuracy by training images."""
    folder = RunFolder("runs", name).path
    runs = train_all(folder, seeds, fractions, options)
    metrics, settings = read_runs(runs, "test")
    groups = seed_groups(settings)
    images = settings["images"].groupby(groups, sort=False).first()
    table = readable(summary(metrics, groups))
    table.insert(0, "images", images)
    print(formatted(table, "text"))
    if len(fractions) > 1:
        images_figure(metrics, settings["images"]).savefig(folder / "images.png")


def shares(text: str) -> list[float]:
    """Reads numbers between commas."""
    return [float(share) for share in text.split(",")]


if __name__ == "__main__":
    parser = ArgumentParser(prog="python scripts/repeat.py", allow_abbrev=False)
    parser.add_argument("name", help="the folder of the runs, below runs/")
    parser.add_argument("--seeds", type=PositiveInt, default=5, help="number of seeds, from 0")
    parser.add_argument("--fractions", type=shares, default="1", help="shares, such as 0.1,0.3,1")
    known, others = parser.parse_known_args()
    style.use(Path(__file__).with_name("pages.mplstyle"))
    run_command(lambda: main(known.name, known.seeds, known.fractions, others))
