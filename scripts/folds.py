"""Cross-validates with the options of project.fit: ``python scripts/folds.py NAME FOLDS OPTIONS...``.

Each fold is a run, ``runs/NAME/fold_1`` and so on. The same command resumes: finished folds are left as they are. All folds together make
``out_of_fold.csv``, in which each image is classified by the run that has not seen it, and ``confusion_matrix.png``.
"""

import csv
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import torch
from lightkeeper.cli import RunFolder, import_modules, read_metrics, run_command
from lightkeeper.exact import UserError
from lightkeeper.images import ImageFilesDataModule
from seeds import line
from training import Options, require_same_data, train

from project.analysis.evaluation import evaluate_split
from project.analysis.plots import confusion_figure
from project.data import ImageDataModule
from project.model import ImageClassifier

FILE, COLUMNS = "out_of_fold.csv", ["path", "label", "true_label", "fold"]


def require_folds(options: Options, folds: int) -> None:
    """Refuses data that a fold cannot be cut from, before any is trained."""
    if issubclass(resolve_name(options.config.data.class_path), ImageFilesDataModule):
        for fold in range(1, folds + 1):
            images = cast(ImageFilesDataModule, options.data(fold=fold))
            if images.source.exists():  # or the first fold downloads them
                for file in images.files():
                    file.path.encode()  # to write the last file: a name may be no UTF-8


def rows_of(run: Path, fold: int) -> list[list[Any]]:
    """Classifies the images that a run has not seen and can be read: COLUMNS, and the probability of each class."""
    best = run / "checkpoints" / "best.ckpt"
    model = ImageClassifier.load_from_checkpoint(best)
    data = ImageDataModule.load_from_checkpoint(best)
    require_same_data(run, model.about, data.digests())
    test = evaluate_split(model, data)
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
    folder = RunFolder("runs", name).path
    runs = [folder / f"fold_{fold}" for fold in range(1, folds + 1)]
    of_all = [*options, f"--data.folds={folds}"]
    parsed = Options(of_all)
    if not resolve_name(parsed.config.model.class_path).has_one_class:
        raise UserError("scripts/folds.py needs a model of images with one class each")
    for module in parsed.modules():
        import_modules(module)  # which checkpoints name
    finished = [run for run in runs if (run / "metrics.json").exists()]
    for fold, run in enumerate(runs, 1):
        if run in finished:  # compares options and data, and trains nothing
            train(run, [*of_all, f"--data.fold={fold}"])
    require_folds(parsed, folds)
    for fold, run in enumerate(runs, 1):
        if run not in finished:
            train(run, [*of_all, f"--data.fold={fold}"])
    tests = [read_metrics(run) for run in runs]
    names = tests[0]["class_names"]
    partial = folder / f".{FILE}"
    with open(partial, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *(f"probability_{label}" for label in names)])
        for fold, run in enumerate(runs, 1):
            writer.writerows(rows_of(run, fold))
    partial.replace(folder / FILE)
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
    if len(sys.argv) < 4 or not sys.argv[2].isdecimal() or int(sys.argv[2]) < 2:
        sys.exit(
            "usage: python scripts/folds.py NAME FOLDS OPTIONS..., such as: flowers 5 --data FOLDER"
        )
    _, name, folds, *options = sys.argv
    run_command(lambda: main(name, int(folds), options))
