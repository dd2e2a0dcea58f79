"""Cross-validates with the options of project.fit: ``python scripts/folds.py NAME FOLDS OPTIONS...``.

Each fold is a run, ``runs/NAME/fold_1`` and so on. The same command resumes: finished folds are left as they are. All folds together make
``out_of_fold.csv``, in which each image is classified by the run that has not seen it, and ``confusion_matrix.png``.
"""

import csv
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import torch
from seeds import line

from project.analysis.evaluation import evaluate_split
from project.analysis.plots import confusion_figure
from project.data import ImageDataModule
from project.engine import read_metrics
from project.engine.cli.entry import one_line_errors
from project.model import ImageClassifier

FILE, COLUMNS = "out_of_fold.csv", ["path", "label", "true_label", "fold"]


def train(runs: list[Path], options: list[str]) -> None:
    """Runs ``project.fit`` for each fold that is not finished; if one fails, ends as it did."""
    for fold, run in enumerate(runs, 1):
        if not (run / "metrics.json").exists():
            given = [*options, f"--data.folds={len(runs)}", f"--data.fold={fold}"]
            place = [f"--trainer.default_root_dir={run.parent}", f"--name={run.name}"]
            command = [sys.executable, "-m", "project.fit", *given, *place]
            if code := finish(subprocess.Popen(command, start_new_session=True)):
                sys.exit(code)


def finish(process: subprocess.Popen[bytes]) -> int:
    """Waits for a run, which signals reach through this process alone, so that it saves; returns its exit code."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {
        number: signal.signal(number, lambda number, _: process.send_signal(number))
        for number in signals
    }
    code = process.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
    return code


def rows_of(run: Path, fold: int) -> list[list[Any]]:
    """Classifies the images that a run has not seen and can be read: COLUMNS, and the probability of each class."""
    best = run / "checkpoints" / "best.ckpt"
    model = ImageClassifier.load_from_checkpoint(best)
    test = evaluate_split(model, ImageDataModule.load_from_checkpoint(best))
    images, names = cast(Any, test.images), model.class_names
    columns = zip(
        map(images.path, range(len(images))),
        test.labels.tolist(),
        test.predicted.tolist(),
        test.probabilities.tolist(),
        strict=True,
    )
    return [
        [str(file.absolute()), names[predicted], names[label], fold, *shares]
        for file, label, predicted, shares in columns
        if label >= 0
    ]


def main(name: str, folds: int, options: list[str]) -> None:
    """Trains what is not trained yet, and puts all folds together."""
    folder = Path("runs") / name
    runs = [folder / f"fold_{fold}" for fold in range(1, folds + 1)]
    train(runs, options)
    tests = [read_metrics(run) for run in runs]
    names = tests[0]["class_names"]
    with open(folder / FILE, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *(f"probability_{label}" for label in names)])
        for fold, run in enumerate(runs, 1):
            writer.writerows(rows_of(run, fold))
    confusion = torch.tensor([metrics["test"]["confusion_matrix"] for metrics in tests]).sum(0)
    confusion_figure(confusion, names).savefig(folder / "confusion_matrix.png")
    print(
        line("test accuracy, %", [100 * metrics["test"]["accuracy"] for metrics in tests]),
        f" n = {folds} folds",
    )
    correct, total = (
        sum(metrics["test"][key] for metrics in tests) for key in ("correct", "total")
    )
    print(
        f"{'all images':20} {100 * correct / total:8.2f}  ({correct:,} of {total:,})\n{folder / FILE}"
    )


if __name__ == "__main__":
    if len(sys.argv) < 4 or not sys.argv[2].isdecimal():
        sys.exit(
            "usage: python scripts/folds.py NAME FOLDS OPTIONS..., such as: flowers 5 --data FOLDER"
        )
    with one_line_errors():
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
