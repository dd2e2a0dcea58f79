"""Trains the recipes of ``configs/imagenet/`` on a small task: ``python scripts/imagenet_recipes.py FOLDER``.

A network of 0.4 million parameters sees images of 96 pixels for 12 epochs. Pixels and epochs of each recipe shrink in proportion. The
learning rate shrinks with the batch, of SGD in proportion, of LAMB by the square root, as timm's ``--lr-base`` does. Weights are averaged
over the same share of training. Options that it does not know go to ``project.fit``. The same command resumes.
"""

import argparse
from pathlib import Path

import pandas as pd
from lightkeeper.cli import run_command
from repeat import train_all

from project.analysis.comparison import formatted, read_runs, readable, summary

SMALL = [
    *("--data.val_fraction=0.1", "--data.test_fraction=0.3", "--data.batch_size=32"),
    *("--data.image_size=96", "--model.arch=timm/test_resnet", "--trainer.max_epochs=12"),
]
_STEPS = "--model.lr_scheduler_interval=step"  # 12 learning rates in all would be few
RECIPES = {
    "torchvision_v1": [
        *("--model.optimizer.lr=0.0125", "--model.lr_scheduler.step_size=4", "--data.resize=110")
    ],
    "torchvision_v2": [
        *("--model.optimizer.lr=0.015625", "--model.lr_scheduler.warmup_epochs=0.1", _STEPS),
        *("--trainer.callbacks.decay=0.97", "--trainer.callbacks.update_every_n_steps=1"),
        *("--data.train_size=75", "--data.resize=99"),
    ],
    "timm_a1": [
        *("--model.optimizer.lr=0.000625", "--model.lr_scheduler.warmup_epochs=0.1", _STEPS),
        "--data.resize=101",
    ],
    "timm_a2": [
        *("--model.optimizer.lr=0.000625", "--model.lr_scheduler.warmup_epochs=0.2", _STEPS),
        "--data.resize=101",
    ],
    "timm_a3": [
        *("--model.optimizer.lr=0.001", "--model.lr_scheduler.warmup_epochs=0.6", _STEPS),
        *("--data.train_size=69", "--data.resize=101"),
    ],
}


def table(runs: list[str]) -> str:
    """Formats each recipe's mean and deviation over seeds, on the test set."""
    metrics, _ = read_runs(runs, "test")
    recipes = pd.Series({run: Path(run).parent.name for run in runs})
    return formatted(readable(summary(metrics, recipes)), "markdown")


def main(images: str, seeds: int, options: list[str]) -> None:
    """Trains each recipe with the first seed, then with the next, and prints a table."""
    runs: dict[str, list[str]] = {}
    for count in range(1, seeds + 1):
        for name, scaled in RECIPES.items():
            config = f"--config=configs/imagenet/{name}.yaml"
            every = [config, f"--data.root={images}", *SMALL, *scaled, *options]
            runs[name] = train_all(Path("runs/imagenet", name), count, [1.0], every)
    print(table([run for members in runs.values() for run in members]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python scripts/imagenet_recipes.py", allow_abbrev=False)
    parser.add_argument("images", metavar="FOLDER", help="a folder of images for each class")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 0")
    known, others = parser.parse_known_args()
    run_command(lambda: main(known.images, known.seeds, others))
