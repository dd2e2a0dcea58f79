"""Prints the table of exact evaluation in docs/results.md: ``python scripts/exact_evaluation.py CHECKPOINT``, from the root.

The checkpoint must be one of the built-in data. A row is a run of ``project.evaluate`` on so many processes, beside it the
report of a padded sampler.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import torch
from lightkeeper.images import read_checkpoint
from torch.utils.data import Dataset, DistributedSampler

from project.data import SyntheticFlowersDataModule
from project.evaluate import load_classifier

TEST_SIZE = 797  # a prime, so that no number of processes divides it


def main(checkpoint: str) -> None:
    """Prints a row for 1, 2, 3 and 5 processes."""
    correct = _correct_by_image(checkpoint)
    print(
        "| processes | `project.evaluate` | a padded sampler, on the same predictions |\n| --- | --- | --- |"
    )
    for world_size in (1, 2, 3, 5):
        exact = _evaluate(checkpoint, world_size)
        padded = int(correct[(seen := _padded(len(correct), world_size))].sum())
        ours = f"{exact['correct']} / {exact['total']} = {exact['accuracy']:.4%}"
        print(
            f"| {world_size} | {ours} | {padded} / {len(seen)} = {padded / len(seen):.4%} |",
            flush=True,
        )


def _padded(size: int, world_size: int) -> list[int]:
    """Returns the images that torch's sampler deals out to all processes together."""
    data = cast("Dataset[int]", range(size))
    found: list[int] = []
    for rank in range(world_size):
        found += DistributedSampler(data, world_size, rank, shuffle=False)
    return found


def _evaluate(checkpoint: str, world_size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "metrics.json"
        options = [
            "--trainer.accelerator=cpu",
            f"--trainer.devices={world_size}",
            f"--data.test_size={TEST_SIZE}",
        ]
        command = [
            sys.executable,
            "-m",
            "project.evaluate",
            checkpoint,
            f"--output={output}",
            *options,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        metrics: dict[str, float] = json.loads(output.read_text())
        return metrics


def _correct_by_image(checkpoint: str) -> torch.Tensor:
    options = read_checkpoint(checkpoint)["about"]["data"]["init_args"]
    data = SyntheticFlowersDataModule(**{**options, "test_size": TEST_SIZE})
    data.setup("test")
    model = load_classifier(checkpoint).eval()
    correct = torch.empty(TEST_SIZE, dtype=torch.bool)
    with torch.inference_mode():
        for batch in data.test_dataloader():
            correct[batch.indices] = model(batch.images).argmax(1) == batch.labels
    return correct


if __name__ == "__main__":
    main(sys.argv[1])
