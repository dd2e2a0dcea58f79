"""Runs are compared by their own metrics, over seeds, and image by image."""

import csv
import json
import math
import os
import shutil
import statistics
from math import comb
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from lightkeeper.exact import UserError
from scipy.stats import binomtest

from project import compare
from project.analysis import comparison
from project.analysis.evaluation import correct_images
from tests.conftest import call, cases, one_line, read_json

ACCURACIES = {"sgd_0": 0.5, "sgd_1": 0.625, "sgd_2": 0.5625, "adam|w": 0.75}


@pytest.fixture
def runs(workplace) -> list[str]:
    for name, accuracy in ACCURACIES.items():
        model: dict[str, Any] = {"class_path": "SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}
        if name == "adam|w":
            model = {"class_path": "AdamW", "init_args": {"lr": 0.1, "long": 100 * "x"}}
        config = {
            "name": name,
            "seed_everything": int(100 * accuracy),
            "model": {"optimizer": model},
        }
        measured = {"accuracy": accuracy, "f1": accuracy / 2, "correct": 16 * accuracy, "total": 16}
        (run := workplace / name).mkdir()
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        (run / "metrics.json").write_text(json.dumps({"test": measured, "val": None}))
    return list(ACCURACIES)


def test_runs_that_differ_in_their_seed_alone_are_a_row_of_mean_and_deviation(runs, capsys):
    call(compare, *runs, "--format=csv", "--output=chart.png")
    sgd, adam = csv.DictReader(capsys.readouterr().out.strip().splitlines())
    assert (sgd["runs"], sgd["n"], adam["runs"], adam["n"]) == ("sgd_0 … sgd_2", "3", "adam|w", "1")
    values = list(ACCURACIES.values())[:3]
    assert [float(sgd[name]) for name in ("test/accuracy", "test/accuracy_std")] == pytest.approx(
        [statistics.mean(values), statistics.stdev(values)]
    )
    # and neither rate nor seed
    differing = ["model.optimizer", "model.optimizer.long", "model.optimizer.momentum"]
    assert [name for name in sgd if "." in name] == differing
    assert [sgd[name] for name in differing] == ["SGD", "", "0.9"]
    assert Path("chart.png").read_bytes().startswith(b"\x89PNG")


def test_folders_and_files_that_are_no_finished_runs_are_left_out_and_named(runs, capsys):
    Path("goes_on", "checkpoints").mkdir(parents=True)
    Path("of_runs", "sgd_0").mkdir(parents=True)
    call(compare, "adam|w", "goes_on", "of_runs", shutil.copy("adam|w/config.yaml", "chart.png"))
    output, notes = capsys.readouterr()
    assert "75.00%" in output
    assert (
        notes == "left out, as no metrics.json can be read in them: goes_on, of_runs, chart.png\n"
    )
    assert "'goes_on' is no finished run" in one_line(lambda: call(compare, "goes_on"), capsys)
    complaint = one_line(lambda: call(compare, *runs, "mistyped"), capsys)
    assert "'mistyped' is no finished run" in complaint


@pytest.mark.parametrize("kind", ["text", "markdown", "latex"])
def test_each_format_has_the_same_cells(runs, capsys, kind):
    call(compare, *runs, f"--format={kind}")
    text = capsys.readouterr().out.replace("\\", "")
    for cell in ("56.25% ± 6.25", "75.00%", "0.2812 ± 0.0312", "adam|w", "model.optimizer"):
        assert cell in text
    assert (100 * "x" in text) == (kind != "text")


@cases(
    "options complaint",
    (["--split=val"], "not all of these runs have measured val"),
    (["--output=chart.docx"], "--output: Format 'docx' is not supported"),
    (["--output=chart"], "--output: Format '' is not supported"),
)
def test_what_cannot_be_compared_is_one_line(runs, capsys, options, complaint):
    assert complaint in one_line(lambda: call(compare, *runs, *options), capsys)


def test_two_checkpoints_are_compared_on_the_same_images_alone(tiny_run, workplace, capsys):
    shutil.copytree(tiny_run, workplace / "copy")
    call(compare, tiny_run, "copy", "--mcnemar", "--split=val")
    assert capsys.readouterr().out.split()[-3:] == ["0", "0", "1.0"]
    assert "--mcnemar: it compares two" in one_line(
        lambda: call(compare, tiny_run, "--mcnemar"), capsys
    )
    assert (
        sum(correct_images(["copy"], "val")["copy"])
        == read_json("copy/metrics.json")["val"]["correct"]
    )
    Path("copy/metrics.json").write_text(json.dumps(read_json("copy/metrics.json") | {"step": 7}))
    assert "is not the checkpoint whose metrics are in" in one_line(
        lambda: call(compare, tiny_run, "copy", "--mcnemar", "--split=val"), capsys
    )


def test_a_run_counts_once_however_its_folder_is_named_and_other_data_are_another_row(
    runs, workplace, capsys
):
    (workplace / "link").symlink_to("sgd_1")
    for run in runs:
        Path(run, "metrics.json").write_text(
            json.dumps(read_json(f"{run}/metrics.json") | {"digests": {"train": run == "sgd_0"}})
        )
    for name, data in {"again": "", "other_order": "data: {seed: 7}\n"}.items():
        config = Path(shutil.copytree("sgd_1", name), "config.yaml")
        config.write_text(data + config.read_text().replace("sgd_1", name))
    call(
        *(compare, *runs, "sgd_0/", workplace / "sgd_2", "link"),
        *("again", "other_order", "--format=csv"),
    )
    output, notes = capsys.readouterr()
    assert [row["n"] for row in csv.DictReader(output.splitlines()[:4])] == ["1", "3", "1"]
    assert notes == "left out, as their settings and seeds are those of another run: again\n"


@pytest.mark.parametrize("content", [None, "- 1\n", "a: [", "!!python/object/apply:os.system [x]"])
def test_a_damaged_config_is_one_line(runs, content, capsys):
    config = Path(runs[0], "config.yaml")
    config.unlink()
    if content is None:
        os.mkfifo(config)
    else:
        config.write_text(content)
    line = one_line(lambda: call(compare, *runs), capsys)
    assert "'sgd_0/config.yaml' is missing or damaged" in line


def test_characters_that_control_a_terminal_are_escaped(runs, workplace, capsys):
    (workplace / runs[0]).rename(workplace / "\x1b[31m")
    call(compare, "\x1b[31m", runs[1])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31m" in out


def test_the_figure_has_the_interval_of_each_run_by_its_own_images():
    columns = {"test/accuracy": [0.9, 0.9, 0.5, 1.0], "total": [1000, 20, 20, 20]}
    groups = pd.Series({"a": "a", "b": "b", "c": "seeds", "d": "seeds"})
    axes = comparison.comparison_figure(pd.DataFrame(columns, groups.index), groups).axes[0]
    lines: Any = axes.collections
    ends = [line.get_segments()[0][:, 0].tolist() for line in lines]
    known = ([0.9], 1000), ([0.9], 20), ([0.5, 1.0], None)
    assert ends == [pytest.approx(comparison.interval(*row)) for row in known]
    assert axes.get_xlim() == (0, 1)  # although Student's interval is from -2.4 to 3.9


def test_an_interval_is_wilsons_or_students():
    wilson = binomtest(30, 40).proportion_ci(method="wilson")
    assert comparison.interval([0.75], 40) == pytest.approx((wilson.low, wilson.high))
    half = 12.706204736174698 * statistics.stdev([0.5, 0.6]) / math.sqrt(2)  # a table's, for n = 2
    assert comparison.interval([0.5, 0.6], 40) == pytest.approx((0.55 - half, 0.55 + half))
    with pytest.raises(UserError, match=r"metrics\.json is damaged: it says 60 of 40 images"):
        comparison.interval([1.5], 40)


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (5, 5), (3, 17), (600, 520)])
def test_the_p_value_is_that_of_the_exact_binomial_test(counts):
    first = [True] * counts[0] + [False] * counts[1] + [True] * 7
    second = [False] * counts[0] + [True] * counts[1] + [True] * 7
    tail = sum(comb(sum(counts), count) for count in range(min(counts) + 1))
    (row,) = comparison.mcnemar({"a": first, "b": second}).reset_index().to_numpy().tolist()
    assert row == ["a", "b", *counts, pytest.approx(min(1, 2 * tail / 2 ** sum(counts)))]
