"""Scripts that compare or combine runs: seeds, recipes, accuracy over time, folds, and labels that folds contradict."""

import csv
import json
import runpy
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageOps

from project.data import CSVDataModule
from tests.conftest import QUIET, SLIM, TINY_TRAINER, fit, make_folder
from tests.small import rows

DOCS = Path(__file__).parents[1] / "scripts"
NO_WEIGHTS = shutil.ignore_patterns("*.ckpt")  # to copy a run without what takes most of its room


def test_the_table_of_seeds_has_mean_and_spread(tiny_run, capsys):
    runpy.run_path(str(DOCS / "seeds.py"))["main"]([tiny_run, tiny_run])
    count, _, test, training = capsys.readouterr().out.splitlines()
    accuracy = 100 * json.loads((tiny_run / "metrics.json").read_text())["test"]["accuracy"]
    assert count == "n = 2"
    assert test.split()[3:6] == [f"{accuracy:.2f}", "±", "0.00"]
    assert float(training.split()[2]) > 0


def script(name, monkeypatch):
    """What a script of the docs defines, imported as when Python runs it."""
    monkeypatch.syspath_prepend(DOCS)
    return runpy.run_path(str(DOCS / name))


def test_the_curves_show_each_way_to_train_and_the_first_epoch_that_reaches_an_accuracy_counts(
    tiny_run, workplace, monkeypatch, capsys
):
    runs = [Path(shutil.copytree(tiny_run, name, ignore=NO_WEIGHTS)) for name in ("one_0", "one_1", "other_0")]
    defined = script("time_to_accuracy.py", monkeypatch)
    defined["main"](["curves.png", *map(str, runs)])
    accuracy = json.loads((tiny_run / "metrics.json").read_text())["val"]["accuracy"]
    ends = [line.split() for line in capsys.readouterr().out.splitlines() if "ends with" in line]
    assert [(name, rest[-1]) for name, *rest in ends] == [("one", "2)"), ("other", "1)")]
    times, reached = zip(*defined["curve"](tiny_run), strict=True)
    assert min(times) > 0
    assert max(reached) == pytest.approx(accuracy)
    steps = [int(row["step"]) for row in rows(tiny_run / "metrics.csv") if row["val/accuracy"]]
    assert [step for step, _ in defined["curve"](tiny_run, in_steps=True)] == steps
    assert Image.open("curves.png").getpixel((0, 0)) == (255, 255, 255, 0)  # transparent, for a page in dark mode
    run = [(10.0, 0.3), (20.0, 0.6), (30.0, 0.5), (40.0, 0.7)]
    assert [defined["reached_at"](least, run) for least in (0.3, 0.5, 0.65, 0.8)] == [10, 20, 40, None]


def test_the_table_of_recipes_compares_runs_of_one_seed(tiny_run, workplace, monkeypatch):
    def runs(name, *accuracies):
        for seed, accuracy in enumerate(accuracies):
            metrics = Path(shutil.copytree(tiny_run, f"{name}_{seed}", ignore=NO_WEIGHTS)) / "metrics.json"
            changed = json.loads(metrics.read_text())
            changed["test"]["accuracy"] = accuracy
            metrics.write_text(json.dumps(changed))
        return [Path(f"{name}_{seed}") for seed in range(len(accuracies))]

    table = script("recipes.py", monkeypatch)["table"]({"none": runs("none", 0.5, 0.6), "ema": runs("ema", 0.55, 0.63)})
    *_, alone, ema = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
    assert alone[:4] == ["none", "2", "55.00% ± 7.07", ""]
    assert ema[:4] == ["ema", "2", "59.00% ± 5.66", "+4.00 ± 1.41"]
    assert ema[5] == "1.00 (1.00 to 1.00)"


def test_folds_classify_each_image_once_by_the_run_that_has_not_seen_it(workplace, monkeypatch, capsys):
    images = make_folder(workplace / "images", {"rose": 14, "tulip": 14})
    started = []

    def run(command, check):
        started.append(fit(*command[3:]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", run)
    data = ["--data=images", "--data.split_seed=2", "--data.image_size=32", "--data.batch_size=4"]
    options = [*data, *TINY_TRAINER, *QUIET, *SLIM]
    for _ in range(2):  # the second time, nothing is left to train
        script("folds.py", monkeypatch)["main"]("cv", 2, options)
        assert len(started) == 2
    found = rows("runs/cv/out_of_fold.csv")
    assert sorted(row["path"] for row in found) == sorted(map(str, images.rglob("*.jpg")))
    assert all(Path(row["path"]).parent.name == row["label"] for row in found)
    counted = Counter((row["fold"], row["label"], row["predicted"]) for row in found)
    correct = 0
    for fold in "12":
        test = json.loads(Path(f"runs/cv/fold_{fold}/metrics.json").read_text())["test"]
        matrix = [[counted[fold, label, predicted] for predicted in ("rose", "tulip")] for label in ("rose", "tulip")]
        assert matrix == test["confusion_matrix"]
        correct += test["correct"]
    assert f"({correct} of 28)" in capsys.readouterr().out


def test_near_duplicates_are_paired_those_in_two_classes_first(workplace, monkeypatch, capsys):
    pytest.importorskip("imagehash", reason="imagehash is an extra")
    generator = np.random.default_rng(0)
    for name in ("rose", "tulip"):
        Path("images", name).mkdir(parents=True)
        for number in range(8):
            coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
            coarse.resize((160, 120), Image.Resampling.BICUBIC).save(f"images/{name}/{number}.png")
    Path("images/rose/broken.png").write_text("no image")
    one, two = (Image.open(f"images/rose/{number}.png") for number in (1, 2))
    one.resize((70, 60)).save("images/rose/small.jpg")
    ImageOps.mirror(two).save("images/tulip/mirrored.jpg", quality=50)
    script("near_duplicates.py", monkeypatch)["main"]("images", "pairs.csv")
    found = [{Path(row["path"]).stem, Path(row["other_path"]).stem} for row in rows("pairs.csv")]
    assert sorted(map(sorted, found)) == [["1", "small"], ["2", "mirrored"]]
    captured = capsys.readouterr()
    assert "2 pairs, 1 of two labels" in captured.out
    assert "broken.png is left out" in captured.err
    assert Path("pairs.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_labels_that_folds_contradict_are_listed_and_corrected(workplace, monkeypatch):
    pytest.importorskip("cleanlab", reason="cleanlab is an extra")
    files = sorted(make_folder(workplace / "images", {"rose": 20, "tulip": 20}).rglob("*.jpg"))
    wrong = {files[3], files[30]}
    with open("out_of_fold.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "predicted", "fold", "probability of rose", "probability of tulip"])
        for path in files:
            label, other = path.parent.name, "tulip" if path.parent.name == "rose" else "rose"
            shares = [0.9, 0.1] if label == "rose" else [0.1, 0.9]
            shares = [0.6, 0.4] if path == files[10] else shares  # its label is right, but it is no typical one
            writer.writerow([path, other if path in wrong else label, label, 1, *shares])
    main = script("label_errors.py", monkeypatch)["main"]
    main(Path())
    assert {Path(row["path"]) for row in rows("label_errors.csv")} == wrong
    assert Path(rows("outliers.csv")[0]["path"]) == files[10]
    assert all(Path(name).read_bytes().startswith(b"\x89PNG") for name in ("label_errors.png", "outliers.png"))
    main(Path(), "labels.csv")
    assert all(file.parent.name == row["label"] for file, row in zip(files, rows("labels.csv"), strict=True))
    assert CSVDataModule("labels.csv", image_size=32).class_names == ["rose", "tulip"]
