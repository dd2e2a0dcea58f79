"""Finds labels that are probably wrong, after scripts/folds.py: ``python scripts/label_errors.py runs/NAME``; needs cleanlab.

Writes ``label_errors.csv`` (path, label, suggested), the most suspicious first, and ``label_errors.jpg`` of the first 40. Look at the
images, and delete the lines whose label is right. ``python scripts/label_errors.py runs/NAME corrected.csv`` then writes a CSV of all
images with the labels that are left corrected, for ``--data corrected.csv``, without columns of splits and groups. ``outliers.csv``
(path, label, score) and ``outliers.jpg`` have the 40 images that look least like any class.

By confident learning (Northcutt et al., 2021, https://arxiv.org/abs/1911.00068): labels that out-of-fold predictions contradict.
"""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from folds import COLUMNS, FILE
from lightkeeper.cli import run_command
from lightkeeper.exact import UserError
from lightkeeper.images import Preprocessing, prepare

from project.analysis.plots import image_grid

FOUND, OUTLIERS, SHOWN = "label_errors.csv", "outliers.csv", 40
WHOLE: Preprocessing = {
    "resize": 160,
    "crop": 160,
    "fit": "pad",
    "mean": [1.0, 1.0, 1.0],
    "std": [1.0, 1.0, 1.0],
}


def read(folder: Path) -> tuple[list[dict[str, str]], list[str], np.ndarray]:
    """Reads ``out_of_fold.csv``: its rows, the names of the classes, and their probabilities, float (N, classes)."""
    if not (folder / FILE).is_file():
        raise UserError(f"'{folder}' has no {FILE}: cross-validate first, by scripts/folds.py")
    with open(folder / FILE, newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [column for column in rows[0] if column not in COLUMNS]
    shares = np.array([[float(row[column]) for column in columns] for row in rows])
    return rows, [column.removeprefix("probability_") for column in columns], shares


def find(rows: list[dict[str, str]], names: list[str], shares: np.ndarray) -> list[list[str]]:
    """Finds suspicious labels: path, label and the class that is most probable instead."""
    try:
        from cleanlab.filter import find_label_issues
    except ModuleNotFoundError:
        sys.exit('error: this needs a package: pip install --editable ".[labels]"')
    labels = [names.index(row["true_label"]) for row in rows]
    ranked = find_label_issues(np.array(labels), shares, return_indices_ranked_by="self_confidence")
    return [
        [rows[at]["path"], rows[at]["true_label"], names[int(shares[at].argmax())]] for at in ranked
    ]


def outliers(rows: list[dict[str, str]], names: list[str], shares: np.ndarray) -> list[list[str]]:
    """Finds the images that least resemble a class: path, label and a score, 0 for the most unusual, by their predictions."""
    from cleanlab.outlier import OutOfDistribution

    labels = np.array([names.index(row["true_label"]) for row in rows])
    scores = OutOfDistribution().fit_score(pred_probs=shares, labels=labels, verbose=False)
    return [
        [rows[at]["path"], rows[at]["true_label"], f"{scores[at]:.4f}"]
        for at in scores.argsort(kind="stable")[:SHOWN]
    ]


def draw(paths: Iterable[str | Path], titles: list[str], output: Path) -> None:
    """Draws thumbnails of image files beside a CSV, in a JPEG of its name."""
    image_grid([prepare(path, WHOLE) for path in paths], titles, columns=8).savefig(
        output.with_suffix(".jpg"), pil_kwargs={"quality": 70}
    )


def require_new(path: Path) -> None:
    """Refuses a file that is there, as what people have changed in it would be lost."""
    if path.exists():
        raise UserError(f"'{path}' is there already; name another file, or remove it")
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder for '{path}'")


def write(path: Path, columns: list[str], rows: list[list[str]]) -> None:
    """Writes a CSV."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    print(f"{path}: {len(rows):,} images")


def main(folder: Path, corrected: str | None = None) -> None:
    """Lists what is suspicious; or corrects what the list has."""
    if corrected is not None:
        require_new(Path(corrected))
        if not (folder / FOUND).is_file():
            raise UserError(f"'{folder}' has no {FOUND}: find them first, without '{corrected}'")
        # a spreadsheet may have put a mark in front, and semicolons between
        with open(folder / FOUND, newline="", encoding="utf-8-sig") as file:
            mark = max(",;\t", key=file.readline().count)
            file.seek(0)
            listed = csv.DictReader(file, delimiter=mark)
            names, wanted = listed.fieldnames, [*listed]
        if names is not None and not {"path", "suggested"} <= {*names}:
            raise UserError(f"'{folder / FOUND}' has no columns path and suggested")
        changes = {row["path"]: row["suggested"] for row in wanted}
        known, *_ = read(folder)
        rows = [[row["path"], changes.get(row["path"], row["true_label"])] for row in known]
        write(Path(corrected), ["path", "label"], rows)
        return
    out_of_fold = read(folder)
    require_new(folder / FOUND)
    found = find(*out_of_fold)
    write(folder / FOUND, ["path", "label", "suggested"], found)
    titles = [f"{label}\n{suggested}?" for _, label, suggested in found[:SHOWN]]
    draw((path for path, *_ in found[:SHOWN]), titles, folder / FOUND)
    unusual = outliers(*out_of_fold)
    write(folder / OUTLIERS, ["path", "label", "score"], unusual)
    draw(
        (path for path, *_ in unusual),
        [f"{label}\n{score}" for _, label, score in unusual],
        folder / OUTLIERS,
    )


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python scripts/label_errors.py runs/NAME [corrected.csv]")
    run_command(lambda: main(Path(sys.argv[1]), *sys.argv[2:]))
