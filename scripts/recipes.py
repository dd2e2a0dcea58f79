"""Measures what each of ``configs/recipes/`` adds to a config: ``python scripts/recipes.py --config FILE``.

For each seed in turn it trains by ``python -m project.fit``, first with the config alone, then with each recipe, and prints
a Markdown table. A finished run is not repeated; an interrupted one starts again, so that its time is that of a training
in one go. Options that it does not know go to ``project.fit``, as ``--trainer.max_epochs 10``.
"""

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from lightkeeper.cli import read_metrics, run_command
from seeds import curve
from training import train

ALONE = "the config alone"
RECIPES = (  # those that suit a small network and a few epochs
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


def table(runs: dict[str, list[Path]]) -> str:
    """Formats accuracy on the test set and seconds of training, beside those of the first row's runs of the same seeds."""
    lines = [
        "| | n | test accuracy | adds | seconds | times as long |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    measured = {
        name: [(100 * _accuracy(run), curve(run)[-1][0]) for run in members]
        for name, members in runs.items()
    }
    alone = next(iter(measured.values()))
    for name, found in measured.items():
        adds, ratio = "", ""
        if found is not alone:
            adds = _spread(
                [one - other for (one, _), (other, _) in zip(found, alone, strict=True)], "+.2f"
            )
            ratios = [one / other for (_, one), (_, other) in zip(found, alone, strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        accuracies, seconds = zip(*found, strict=True)
        lines.append(
            f"| {name} | {len(found)} | {_spread(accuracies, '.2f', '%')} | {adds} | {_spread(seconds, '.0f')} | {ratio} |"
        )
    return "\n".join(lines)


def _accuracy(run: Path) -> float:
    return float(read_metrics(run)["test"]["accuracy"])


def _spread(values: list[float] | tuple[float, ...], form: str, unit: str = "") -> str:
    deviation = f" ± {statistics.stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{unit}{deviation}"


def main(args: list[str]) -> None:
    """Trains what is not there yet, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--recipes", nargs="+", default=RECIPES, help="names, by default those for small networks"
    )
    parser.add_argument("--config", required=True, help="what they are compared with")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/recipes"), help="where the runs are"
    )
    given, options = parser.parse_known_args(args)
    runs: dict[str, list[Path]] = {name: [] for name in (ALONE, *given.recipes)}
    for seed in range(given.seeds):
        for name, members in runs.items():
            members.append(given.folder / f"{name.replace(' ', '_')}_{seed}")
            recipe = [] if name == ALONE else ["--config", f"configs/recipes/{name}.yaml"]
            if not (members[-1] / "metrics.json").exists():
                shutil.rmtree(members[-1], ignore_errors=True)
            seeded = [*options, f"--seed_everything={seed}"]
            train(members[-1], ["--config", given.config, *recipe, *seeded])
    print(table(runs))


if __name__ == "__main__":
    run_command(lambda: main(sys.argv[1:]))
