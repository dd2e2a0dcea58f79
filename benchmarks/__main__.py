"""``python -m benchmarks``: how fast this machine loads, trains, evaluates and starts, beside plain loops."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightkeeper.images._hardware import best_precision, tune_malloc, usable_cores
from lightkeeper.images._quiet import quiet_libraries
from lightning.pytorch import Callback

from benchmarks.loading import loading_variants
from benchmarks.loops import OURS, PLAIN, planned, variants
from benchmarks.timing import Measure, in_turns, ratios, spread

_TINY = ["--data.train_size=64", "--data.val_size=64", "--data.test_size=64", "--trainer.devices=1"]
_FIRST_STEP = [
    "-m",
    "project.fit",
    *_TINY,
    "--trainer.callbacks+=benchmarks.__main__.EndAfterFirstStep",
]


class EndAfterFirstStep(Callback):
    """Ends the process when the first training step is done, for which a user waits."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        """Waits for the device and ends at once."""
        outputs["loss"].item()
        os._exit(0)


def seconds_to_run(arguments: list[str], _round: int) -> float:
    """Runs Python with these arguments in an empty folder."""
    with TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": os.getcwd()}
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.perf_counter() - began


def sections(device: torch.device, folder: Path) -> Iterator[tuple[str, dict[str, Measure]]]:
    """Yields titles and variants, each section when the one before is done."""
    yield "loading JPEG files of 366 x 276 on one core, images per second", loading_variants(folder)
    for work in planned(device):
        for kind in ("training", "evaluating"):
            yield (
                f"{kind} {work.title}, images per second",
                variants(work, device, training=kind == "training"),
            )
    yield (
        "starting, seconds (less is better)",
        {
            "import lightning.pytorch": partial(seconds_to_run, ["-c", "import lightning.pytorch"]),
            "project.fit --help": partial(seconds_to_run, ["-m", "project.fit", "--help"]),
            "project.fit, first step": partial(seconds_to_run, _FIRST_STEP),
        },
    )


def table(title: str, values: dict[str, list[float]]) -> str:
    """Formats a section: median, minimum and maximum, and the ratio to the first variant in the same round."""
    base, width = next(iter(values.values())), max(map(len, values))
    rows = [
        f"{name:<{width}}{spread(of, 1):>30}{spread(ratios(of, base), 2):>26}"
        for name, of in values.items()
    ]
    if PLAIN in values:
        rows.append(f"{OURS} / {PLAIN}: {spread(ratios(values[OURS], values[PLAIN]), 3)}")
    return "\n  ".join([title, *rows])


def machine() -> str:
    """Names processor, cores, GPU, precision and versions."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    parts = [
        (names or [platform.machine()])[0],
        f"{usable_cores()} cores",
        f"{torch.get_num_threads()} threads",
        gpu,
    ]
    return ", ".join(
        [
            *parts,
            best_precision("auto"),
            f"python {platform.python_version()}",
            *(f"{name} {version(name)}" for name in ("torch", "lightning", "torchvision")),
        ]
    )


def parser() -> argparse.ArgumentParser:
    """Builds the command's parser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="how many times each variant is measured, in turns"
    )
    parser.add_argument("--output", type=Path, help="a JSON file for every measurement")
    return parser


def main(args: list[str] | None = None) -> None:
    """Measures, prints, and writes the file."""
    options = parser().parse_args(args)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    quiet_libraries()
    tune_malloc()  # a setting of the process, so that all variants have it
    found: dict[str, dict[str, list[float]]] = {}
    print(machine(), flush=True)
    with TemporaryDirectory() as folder:
        for title, measures in sections(device, Path(folder)):
            found[title] = in_turns(measures, options.rounds)
            print(f"\n{table(title, found[title])}", flush=True)
    if options.output:
        options.output.write_text(json.dumps({"machine": machine(), "sections": found}, indent=2))


if __name__ == "__main__":
    main()
