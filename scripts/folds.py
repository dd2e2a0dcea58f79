"""Cross-validates with the options of project.fit: ``python scripts/folds.py NAME FOLDS OPTIONS...``.

Each fold is a run, ``runs/NAME/fold_1`` and so on. The same command resumes: finished folds are left as they are. All folds together make
``out_of_fold.csv``, in which each image is classified by the run that has not seen it, and ``confusion_matrix.png``.
"""

import csv
import os
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import torch
from jsonargparse import Namespace
from lightkeeper.cli import import_modules, read_metrics, run_command
from lightkeeper.exact import UserError
from lightkeeper.images import ImageFilesDataModule, read_checkpoint
from seeds import line
from training import train

from project.analysis.evaluation import evaluate_split
from project.analysis.plots import confusion_figure
from project.data import ImageDataModule
from project.fit import FitCLI
from project.model import ImageClassifier
from project.model.networks import is_path

FILE, COLUMNS = "out_of_fold.csv", ["path", "label", "true_label", "fold"]


class Options(FitCLI):
    """The options of ``project.fit``; parsing imports the classes that the last step needs."""

    def before_instantiate_classes(self) -> None:
        """Leaves the folder of a run alone."""

    def instantiate_classes(self) -> None:
        """Builds nothing."""

    def prepare_for_checkpoints(self) -> None:
        """Imports what checkpoints name of yours, and refuses models of several labels."""
        model = self.config.model
        model_class = resolve_name(model.class_path)
        if not model_class.has_one_class:
            raise UserError("scripts/folds.py needs a model of images with one class each")
        yours = [
            model.init_args.get("arch"),
            model_class is not ImageClassifier and model.class_path,
        ]
        for path in yours:
            if path and is_path(path):
                import_modules(path.rpartition(".")[0])

    def require_folds(self, runs: list[Path]) -> None:
        """Refuses data that a fold cannot be cut from, or that has changed, before any is trained."""
        data = self.config.data
        data_class = resolve_name(data.class_path)
        if issubclass(data_class, ImageFilesDataModule):
            for fold, run in enumerate(runs, 1):
                config = self.config.clone()
                config.data.init_args.fold = fold
                chosen = Namespace(data=config.data)  # type: ignore[no-untyped-call]
                images = self.parser.instantiate_classes(chosen).data
                if images.source.exists():  # or the first fold downloads them
                    for file in images.files():
                        file.path.encode()  # to write the last file: a name may be no UTF-8
                    if (run / "metrics.json").exists():
                        best = run / "checkpoints" / "best.ckpt"
                        require_same_data(run, read_checkpoint(best)["about"], images)


def require_same_data(run: Path, about: dict[str, Any], data: ImageDataModule) -> None:
    """Refuses data that has changed since a run was trained, as it may have seen its test images."""
    if about.get("digests", data.digests()) != data.digests():
        raise UserError(
            f"the data has changed since '{run}' was trained, so it may have seen images of this"
            " fold; put the data back, or take another NAME"
        )


def rows_of(run: Path, fold: int) -> list[list[Any]]:
    """Classifies the images that a run has not seen and can be read: COLUMNS, and the probability of each class."""
    best = run / "checkpoints" / "best.ckpt"
    model = ImageClassifier.load_from_checkpoint(best)
    data = ImageDataModule.load_from_checkpoint(best)
    require_same_data(run, model.about, data)
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
    folder = Path("runs") / name
    runs = [folder / f"fold_{fold}" for fold in range(1, folds + 1)]
    of_all = [*options, f"--data.folds={folds}"]
    cli = Options(of_all)
    cli.prepare_for_checkpoints()
    for fold, run in enumerate(runs, 1):
        if (run / "metrics.json").exists():  # compares options, and trains nothing
            train(run, [*of_all, f"--data.fold={fold}"])
    cli.require_folds(runs)
    for fold, run in enumerate(runs, 1):
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
    sys.path.append(os.getcwd())  # as of python -m project.fit
    del sys.argv[1:]  # LightningCLI warns if there are two command lines
    run_command(lambda: main(name, int(folds), options))
