"""Compares a config with itself and further options, seed by seed: for ``scripts/recipes.py`` and ``scripts/ablation.py``.

For each seed in turn it trains by ``python -m project.fit``, first with the config alone and then in each other way, and
prints a Markdown table. A run that is finished is not repeated; one that was interrupted starts again, so that its time
is that of a training in one go. Options that it does not know go to ``project.fit``, as ``--trainer.max_epochs 10``.
``--jobs 2 --threads 1`` trains two at a time with a thread each: sooner done on two cores than one after the other.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seeds import curve

ALONE = "the config alone"


def command(config: str, flags: list[str], seed: int, run: Path) -> list[str]:
    """Builds the command line that trains."""
    place = ["--trainer.default_root_dir", str(run.parent), "--name", run.name]
    return [sys.executable, "-m", "project.fit", "--config", config, *flags, "--seed_everything", str(seed), *place]


def train(config: str, flags: list[str], seed: int, run: Path, quiet: bool) -> None:
    """Trains, unless that is done. Networks of the calling script can be named by its own name."""
    words = command(config, flags, seed, run)
    asked, done = shlex.join(words[1:]), run / "command.txt"
    if not done.exists():
        shutil.rmtree(run, ignore_errors=True)
        found = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(found)}
        shown = [*words, "--trainer.enable_progress_bar", "false"] if quiet else words
        subprocess.run(shown, check=True, env=env, stdout=subprocess.DEVNULL if quiet else None)
        done.write_text(asked)
        print(f"{run.name}: {_accuracy(run):.2%} after {curve(run)[-1][0]:.0f} s", flush=True)
    elif done.read_text() != asked:
        sys.exit(f"'{run}' was trained by other options; choose another --folder")


def table(ways: dict[str, list[Path]]) -> str:
    """Accuracy on the test set and seconds of training, and what they are compared with those of the first way.

    Args:
        ways: The runs of each, with the same seeds in the same order; differences and ratios are of runs with one seed.

    Returns:
        Markdown, with means and standard deviations, and with medians and extremes of ratios.
    """
    lines = ["| | n | test accuracy | adds | seconds | times as long |", "| --- | --- | --- | --- | --- | --- |"]
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


def _run(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name.replace(' ', '_')}_{seed}"


def _accuracy(run: Path) -> float:
    return float(json.loads((run / "metrics.json").read_text())["test"]["accuracy"])


def _spread(values: list[float], form: str, unit: str = "") -> str:
    deviation = f" ± {statistics.stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{unit}{deviation}"


def compare(ways: dict[str, list[str]], description: str, config: str, args: list[str]) -> None:
    """Trains what is not there yet, and prints the table.

    Args:
        ways: The options of each way, beside the config alone, by name.
        description: Of the command, for its help.
        config: The config that is taken where no other is named.
        args: The command's.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--ways", nargs="+", default=list(ways), choices=ways, help="which, by default all")
    parser.add_argument("--config", default=config, help="what they are compared with")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="how many to train at a time")
    parser.add_argument("--folder", type=Path, default=Path("runs") / Path(sys.argv[0]).stem, help="where the runs are")
    given, options = parser.parse_known_args(args)
    runs = {name: [_run(given.folder, name, seed) for seed in range(given.seeds)] for name in (ALONE, *given.ways)}
    planned = [(name, seed) for seed in range(given.seeds) for name in runs]

    def train_one(name: str, seed: int) -> None:
        train(given.config, [*ways.get(name, []), *options], seed, runs[name][seed], quiet=given.jobs > 1)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(train_one, *zip(*planned, strict=True)))  # a failure ends it once those that run are done
    print(table(runs))
