"""Trains again, and replaces a checkpoint in use unless the new one is worse: ``python scripts/retrain.py SERVED FOLDER NAME OPTIONS``.

``runs/NAME`` is trained on FOLDER with the options of ``project.fit``. Both checkpoints classify its validation set, as a test set
that chooses measures nothing any more; ``project.evaluate`` refuses images that the one in use was trained on. If the new one classifies
fewer correctly, SERVED stays as it is, and the exit code is 1.
"""

import csv
import shutil
import sys
from pathlib import Path

from lightkeeper.cli import RunFolder, run_apart, run_command
from lightkeeper.exact import UserError
from training import train

from project.analysis.comparison import formatted, mcnemar


def run(module: str, *options: str | Path) -> None:
    """Runs a command of this project; ends as it ends if it fails."""
    if code := run_apart([sys.executable, "-m", module, *map(str, options)]):
        sys.exit(code)


def correct_images(checkpoint: Path, folder: str, output: Path) -> dict[str, bool]:
    """Says of each validation image of a folder, by its path, if a checkpoint classifies it correctly."""
    files = [f"--output={output.with_suffix('.json')}", f"--output_predictions={output}"]
    run("project.evaluate", checkpoint, "--split=val", f"--data={folder}", *files)
    with open(output, newline="", encoding="utf-8") as file:
        return {row["path"]: row["correct"] == "true" for row in csv.DictReader(file)}


def main(served: Path, folder: str, name: str, options: list[str]) -> int:
    """Trains if that is not done, compares and perhaps replaces; returns the exit code."""
    new = RunFolder("runs", name)
    train(new.path, [f"--data={folder}", *options])
    if served.exists():
        before = correct_images(served, folder, new.path / "served.csv")
        after = correct_images(new.best, folder, new.path / "new.csv")
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
