"""The scripts of the docs that compare finished runs: tables over seeds and recipes, and accuracy over time."""

import csv
import json
import runpy
import shutil
from pathlib import Path

import pytest

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


def test_the_curves_show_each_way_to_train(tiny_run, workplace, monkeypatch, capsys):
    runs = [Path(shutil.copytree(tiny_run, name, ignore=NO_WEIGHTS)) for name in ("one_0", "one_1", "other_0")]
    defined = script("time_to_accuracy.py", monkeypatch)
    defined["main"](["curves.png", *map(str, runs)])
    accuracy = json.loads((tiny_run / "metrics.json").read_text())["val"]["accuracy"]
    ends = [line.split() for line in capsys.readouterr().out.splitlines() if "ends with" in line]
    assert [(name, rest[-1]) for name, *rest in ends] == [("one", "2)"), ("other", "1)")]
    times, reached = zip(*defined["curve"](tiny_run), strict=True)
    assert min(times) > 0
    assert max(reached) == pytest.approx(accuracy)
    rows = csv.DictReader((tiny_run / "metrics.csv").read_text().splitlines())
    steps = [int(row["step"]) for row in rows if row["val/accuracy"]]
    assert [step for step, _ in defined["curve"](tiny_run, in_steps=True)] == steps
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_time_to_an_accuracy_is_that_of_the_first_epoch_that_reaches_it(monkeypatch):
    reached_at = script("time_to_accuracy.py", monkeypatch)["reached_at"]
    run = [(10.0, 0.3), (20.0, 0.6), (30.0, 0.5), (40.0, 0.7)]
    assert [reached_at(accuracy, run) for accuracy in (0.3, 0.5, 0.65, 0.8)] == [10, 20, 40, None]


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
