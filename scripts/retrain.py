"""Trains again, and replaces a checkpoint in use unless the new one is worse: ``python scripts/retrain.py SERVED FOLDER NAME OPTIONS``.

``runs/NAME`` is trained on FOLDER, or a table, with the options of ``project.fit``. Both classify its validation set, as a test set
that chooses measures nothing any more; ``project.evaluate`` refuses images that the one in use was trained on. If the new one classifies
fewer correctly, SERVED stays as it is, and the exit code is 1.
"""

import csv
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lightkeeper.cli import RunFolder, run_apart, run_command
from lightkeeper.exact import UserError
from training import Options, train

from project.analysis.comparison import formatted, mcnemar

OF_SPLITS = (
    *("--data.root", "--data.path_column", "--data.label_column", "--data.split_column"),
    *("--data.group", "--data.label_from"),
    *("--data.split_seed", "--data.val_fraction", "--data.test_fraction"),
)


def run(module: str, *options: str | Path) -> None:
    """Runs a command of this project; ends as it ends if it fails."""
    if code := run_apart([sys.executable, "-m", module, *map(str, options)]):
        sys.exit(code)


def of_splits(options: list[str]) -> list[str]:
    """Returns the options that say which images are validation's, with their values."""
    kept = []
    for word, following in zip(options, [*options[1:], ""], strict=True):
        name, equals, _ = word.partition("=")
        if name in OF_SPLITS:
            kept += [word] if equals else [word, following]
    return kept


def correct_images(checkpoint: Path, data: list[str], output: Path) -> dict[str, bool]:
    """Says of each validation image, by its path, if a checkpoint classifies it correctly."""
    files = [f"--output={output.with_suffix('.json')}", f"--output_predictions={output}"]
    run("project.evaluate", checkpoint, "--split=val", *data, *files)
    with open(output, newline="", encoding="utf-8") as file:
        return {row["path"]: row["correct"] == "true" for row in csv.DictReader(file)}


def main(served: Path, folder: str, name: str, options: list[str]) -> int:
    """Trains if that is not done, compares and perhaps replaces; returns the exit code."""
    new = RunFolder("runs", name)
    if not served.absolute().parent.is_dir():
        raise UserError(f"there is no folder for '{served}'")
    own = ",".join(Options([f"--data={folder}", *options]).modules())
    imported = [f"--import={own}"] if own else []
    data = [f"--data={folder}", *of_splits(options), *imported]
    before: dict[str, bool] = {}
    with TemporaryDirectory() as scratch:
        # first, as it may have been trained on these images, or know other classes
        if served.exists():
            before = correct_images(served, data, Path(scratch, "served.csv"))
        train(new.path, [f"--data={folder}", *options])
        shutil.copytree(scratch, new.path, dirs_exist_ok=True)
    if before:
        after = correct_images(new.best, data, new.path / "new.csv")
        if before.keys() != after.keys():
            raise UserError(
                "the two have different validation images, by other options of their data"
            )
        rows = {"served": [*before.values()], "new": [after[path] for path in before]}
        print(formatted(mcnemar(rows), "text"))
        if sum(rows["new"]) < sum(rows["served"]):
            print(f"{served} stays: {new.best} is worse")
            return 1
    partial = served.with_name(f".{served.name}")
    shutil.copyfile(new.best, partial)
    partial.replace(served)  # at once, for those that read it
    print(f"{served} is now {new.best}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: python scripts/retrain.py SERVED FOLDER NAME OPTIONS...")
    _, served, folder, name, *options = sys.argv
    run_command(lambda: main(Path(served), folder, name, options))
