"""Measures what each of ``configs/recipes/`` adds to a config: ``python docs/recipes.py``.

For each seed in turn it trains by ``python -m project.fit``, first with the config alone and then with each recipe, and
prints a Markdown table. A run that is finished is not repeated; one that was interrupted starts again, so that its time
is that of a training in one go. Options that it does not know go to ``project.fit``, as ``--trainer.max_epochs 10``.
"""

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from seeds import curve

ALONE = "the config alone"
RECIPES = (
    "randaugment",
    "trivialaugment",
    "random_erasing",
    "cutout",
    "mixup",
    "cutmix",
    "mixup_or_cutmix",
    "ema",
    "one_cycle",
    "warm_restarts",
    "adamw",
)
"""Those that suit a small network and a few epochs."""


def command(config: str, recipe: str, seed: int, run: Path, options: list[str]) -> list[str]:
    """Builds the command line that trains."""
    added = [] if recipe == ALONE else ["--config", f"configs/recipes/{recipe}.yaml"]
    place = ["--trainer.default_root_dir", str(run.parent), "--name", run.name]
    return [
        *(sys.executable, "-m", "project.fit", "--config", config, *added),
        *("--seed_everything", str(seed), *place, *options),
    ]


def train(config: str, recipe: str, seed: int, folder: Path, options: list[str]) -> Path:
    """Trains, unless that is done; returns the run."""
    run = folder / f"{recipe.replace(' ', '_')}_{seed}"
    words = command(config, recipe, seed, run, options)
    asked, done = shlex.join(words[1:]), run / "command.txt"
    if not done.exists():
        shutil.rmtree(run, ignore_errors=True)
        subprocess.run(words, check=True)
        done.write_text(asked)
    elif done.read_text() != asked:
        sys.exit(f"'{run}' was trained by other options; choose another --folder")
    return run


def table(ways: dict[str, list[Path]]) -> str:
    """Accuracy on the test set and seconds of training, and what they are compared with those of the first way.

    Args:
        ways: The runs of each, with the same seeds in the same order; differences and ratios are of runs with one seed.

    Returns:
        Markdown, with means and standard deviations, and with medians and extremes of ratios.
    """
    lines = ["| recipe | n | test accuracy | adds | seconds | times as long |", "| --- | --- | --- | --- | --- | --- |"]
    alone = next(iter(ways))
    accuracies = {name: [100 * _accuracy(run) for run in runs] for name, runs in ways.items()}
    seconds = {name: [curve(run)[-1][0] for run in runs] for name, runs in ways.items()}
    for name, runs in ways.items():
        adds, ratio = "", ""
        if name != alone:
            adds = _spread([a - b for a, b in zip(accuracies[name], accuracies[alone], strict=True)], "+.2f")
            ratios = [a / b for a, b in zip(seconds[name], seconds[alone], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        accuracy, took = _spread(accuracies[name], ".2f", "%"), _spread(seconds[name], ".0f")
        lines.append(f"| {name} | {len(runs)} | {accuracy} | {adds} | {took} | {ratio} |")
    return "\n".join(lines)


def _accuracy(run: Path) -> float:
    return float(json.loads((run / "metrics.json").read_text())["test"]["accuracy"])


def _spread(values: list[float], form: str, unit: str = "") -> str:
    deviation = f" ± {statistics.stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{unit}{deviation}"


def main(args: list[str]) -> None:
    """Trains what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, metavar="NAME", help="which, by default %(default)s")
    parser.add_argument("--config", default="configs/cifar10_resnet9.yaml", help="what they are added to")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--folder", type=Path, default=Path("runs/recipes"), help="where the runs are")
    given, options = parser.parse_known_args(args)
    ways: dict[str, list[Path]] = {name: [] for name in (ALONE, *given.recipes)}
    for seed in range(given.seeds):
        for name, runs in ways.items():
            runs.append(train(given.config, name, seed, given.folder, options))
    print(table(ways))


if __name__ == "__main__":
    main(sys.argv[1:])
