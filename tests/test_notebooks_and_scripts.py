"""Notebooks and scripts run from top to bottom, and what they say of runs is what the runs measured."""

import ast
import json
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import helpers
import label_errors
import nbformat
import near_duplicates
import numpy as np
import pytest
import recipes
import seeds
import torch
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image, ImageOps
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from project.analysis.evaluation import evaluate_split
from project.analysis.tables import metrics_table
from project.data import CSVDataModule
from tests.conftest import (
    QUIET,
    ROOT,
    SLIM,
    TINY,
    TINY_TRAINER,
    draw_image,
    fit,
    make_folder,
    opened,
)
from tests.distributed.processes import started, succeed, wait_until
from tests.small import read_json, rows

NOTEBOOKS, SCRIPTS = (ROOT / name for name in ("notebooks", "scripts"))

PLOTS = {
    "explore_checkpoint": "curves confusion classes calibration mistakes gradcam neighbours projection",
    "compare_runs": "curves losses differences",
    "explore_data": "balance samples augmentation errors",
}
EMBEDDINGS = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(
    1, 3, 16
)
NO_WEIGHTS = shutil.ignore_patterns("*.ckpt")  # to copy a run without what takes most of its room


@pytest.fixture
def cells(workplace, monkeypatch, capsys):
    """Runs a notebook's cells with environment variables, without Jupyter, which takes seconds to start.

    Returns what the cells print and, after a check that plots are drawn, nothing else.
    """

    def run(name: str, no_plots: str = "", **variables: Any) -> dict[str, str]:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, str(value))
        names: dict[str, Any] = {}
        shown, said = {}, {}
        for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
            if cell.cell_type == "code":
                statements: Any = ast.parse(re.sub("^%.*", "", cell.source)).body
                last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
                exec(compile(ast.Module(statements, []), "cell", "exec"), names)
                value = last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
                shown[cell.id] = isinstance(value, Figure)
                said[cell.id] = capsys.readouterr().out.rstrip("\n")
        drawn = {cell for cell in shown if shown[cell]}
        assert drawn == {*PLOTS[name].split()} - {no_plots}
        return said

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("CHECKPOINT", raising=False)
    monkeypatch.setattr(helpers, "start", lambda: None)  # stays in this folder
    return run


@pytest.mark.parametrize("kind", ["tiny_run", "multilabel"])
def test_cells_measure_what_the_run_did_and_draw(kind, request, cells):
    run = request.getfixturevalue(kind)
    metrics = read_json(run / "metrics.json")
    draw_image(0.3, seed=0).save("own.png")
    options = {"CHECKPOINT": run / "checkpoints" / "best.ckpt", "IMAGE": "own.png"}
    cells("explore_data", **options)
    said = cells("explore_checkpoint", **options)
    assert said["metrics"] == metrics_table({"val": metrics["val"]})
    assert said["test"] == metrics_table({"test": metrics["test"]})
    assert said["own"].splitlines()[0].split()[-1] in metrics["class_names"]


def test_runs_are_compared_by_the_images_that_one_alone_is_right_about(cells, tiny_run):
    fit(*TINY, *SLIM, "--seed_everything=1", "--trainer.default_root_dir=runs", "--name=other")
    runs = (tiny_run, Path("runs/other"))
    said = cells("compare_runs", RUNS=" ".join(map(str, runs)))
    first, second = (evaluate_split(*opened(run)).correct for run in runs)
    for name, mine, other in (("tiny", first, second), ("other", second, first)):
        line = f"{name} alone is right about {int((mine & ~other).sum())} images"
        assert line in said["mcnemar"]


def test_duplicates_of_a_folder_are_found(cells, workplace):
    make_folder(workplace, dict.fromkeys("abc", 12))
    shutil.copy("a/0.jpg", "a/copy.jpg")
    Path("b/broken.jpg").write_bytes(b"no image")
    said = cells("explore_data", "errors", FOLDER=workplace)  # these take a model
    assert "1 unreadable files, 1 groups of duplicates" in said["duplicates"]
    assert {"a/0.jpg", "a/copy.jpg"} <= set(said["duplicates"].split())


@pytest.mark.slow
@pytest.mark.parametrize("name", PLOTS)
def test_every_cell_runs_in_jupyter_without_a_warning(name, tiny_run, tmp_path, monkeypatch):
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CHECKPOINT", str(tiny_run / "checkpoints" / "best.ckpt"))
    monkeypatch.setenv("RUNS", f"{tiny_run} {shutil.copytree(tiny_run, tmp_path / 'again')}")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    assert [out for out in outputs if out.get("name") == "stderr"] == []


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (5, 5), (3, 17), (600, 520)])
def test_the_p_value_is_that_of_the_exact_binomial_test(counts):
    first = torch.tensor([True] * counts[0] + [False] * counts[1] + [True] * 7 + [False] * 4)
    differing = sum(counts)
    second = torch.cat([~first[:differing], first[differing:]])
    expected = stats.binomtest(counts[0], differing).pvalue if differing else 1.0  # type: ignore[attr-defined]  # has no types
    assert helpers.mcnemar(first, second) == pytest.approx(expected, rel=1e-9)


def test_neighbours_and_the_projection_are_those_of_scikit_learn():
    reference = NearestNeighbors(n_neighbors=5, metric="cosine").fit(EMBEDDINGS.numpy())
    found = helpers.nearest(EMBEDDINGS, EMBEDDINGS[:20], 5).numpy()
    expected = reference.kneighbors(EMBEDDINGS[:20].numpy(), return_distance=False)
    assert np.array_equal(found, expected)
    points = helpers.projected(EMBEDDINGS).numpy()
    components = PCA(2, svd_solver="full").fit_transform(EMBEDDINGS.double().numpy())
    signs = np.sign(points[0] * components[0])
    np.testing.assert_allclose(points, signs * components, rtol=1e-6, atol=1e-9)


def test_the_table_of_seeds_has_mean_and_spread(tiny_run, capsys):
    seeds.main([tiny_run, tiny_run])
    count, _, test, training, _ = capsys.readouterr().out.splitlines()
    accuracy = 100 * read_json(tiny_run / "metrics.json")["test"]["accuracy"]
    assert count == "n = 2"
    assert test.split()[3:6] == [f"{accuracy:.2f}", "±", "0.00"]
    assert float(training.split()[2]) > 0


def test_the_table_of_recipes_compares_runs_of_one_seed(tiny_run, workplace):
    def runs(name, *accuracies):
        for seed, accuracy in enumerate(accuracies):
            metrics = (
                Path(shutil.copytree(tiny_run, f"{name}_{seed}", ignore=NO_WEIGHTS))
                / "metrics.json"
            )
            changed = json.loads(metrics.read_text())
            changed["test"]["accuracy"] = accuracy
            metrics.write_text(json.dumps(changed))
        return [Path(f"{name}_{seed}") for seed in range(len(accuracies))]

    table = recipes.table({"none": runs("none", 0.5, 0.6), "ema": runs("ema", 0.55, 0.63)})
    *_, alone, ema = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
    )
    assert alone[:4] == ["none", "2", "55.00% ± 7.07", ""]
    assert ema[:4] == ["ema", "2", "59.00% ± 5.66", "+4.00 ± 1.41"]
    assert ema[5] == "1.00 (1.00 to 1.00)"


@pytest.mark.slow
def test_folds_resume_after_ctrl_c_and_classify_each_image_by_the_run_that_has_not_seen_it(
    workplace,
):
    classes = ("rose", "tulip")
    images = make_folder(workplace / "images", dict.fromkeys(classes, 14))
    data = ["--data=images", "--data.split_seed=2", "--data.image_size=32", "--data.batch_size=4"]
    options = [*data, *TINY_TRAINER, *QUIET, *SLIM, "--trainer.max_epochs=6"]
    command = [sys.executable, str(SCRIPTS / "folds.py"), "cv", "2", *options]
    with started(command, workplace) as stopped:
        wait_until(Path("runs/cv/fold_1/checkpoints/last.ckpt").exists, workplace)
        stopped.send_signal(signal.SIGINT)
        assert stopped.wait(120) == 75  # it has saved
    ended = succeed(command, workplace)
    assert "continuing runs/cv/fold_1" in ended.err
    found = rows("runs/cv/out_of_fold.csv")
    assert sorted(row["path"] for row in found) == sorted(map(str, images.rglob("*.jpg")))
    assert all(Path(row["path"]).parent.name == row["true_label"] for row in found)
    counted = Counter((row["fold"], row["true_label"], row["label"]) for row in found)
    correct = 0
    for fold in "12":
        test = read_json(f"runs/cv/fold_{fold}/metrics.json")["test"]
        assert test["confusion_matrix"] == [
            [counted[fold, label, guess] for guess in classes] for label in classes
        ]
        correct += test["correct"]
    assert f"({correct} of 28)" in ended.out


def test_near_duplicates_are_paired_those_in_two_classes_first(workplace, capsys):
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
    near_duplicates.main("images", "pairs.csv")
    found = [{Path(row["path"]).stem, Path(row["other_path"]).stem} for row in rows("pairs.csv")]
    assert sorted(map(sorted, found)) == [["1", "small"], ["2", "mirrored"]]
    captured = capsys.readouterr()
    assert "2 pairs, 1 of two labels" in captured.out
    assert "broken.png is left out" in captured.err
    assert Path("pairs.jpg").read_bytes().startswith(b"\xff\xd8")


@pytest.mark.slow
def test_labels_that_folds_contradict_are_listed_and_corrected(workplace):
    pytest.importorskip("cleanlab", reason="cleanlab is an extra")
    files = sorted(make_folder(workplace / "images", {"rose": 20, "tulip": 20}).rglob("*.jpg"))
    wrong = {files[3], files[30]}
    lines = ["path,label,true_label,fold,probability_rose,probability_tulip"]
    for path in files:
        label, other = path.parent.name, "tulip" if path.parent.name == "rose" else "rose"
        shares = "0.9,0.1" if label == "rose" else "0.1,0.9"
        shares = (
            "0.6,0.4" if path == files[10] else shares
        )  # its label is right, but it is no typical one
        lines.append(f"{path},{label},{other if path in wrong else label},1,{shares}")
    Path("out_of_fold.csv").write_text("\n".join(lines))
    main = label_errors.main
    main(Path())
    assert {Path(row["path"]) for row in rows("label_errors.csv")} == wrong
    assert Path(rows("outliers.csv")[0]["path"]) == files[10]
    assert all(
        Path(name).read_bytes().startswith(b"\xff\xd8")
        for name in ("label_errors.jpg", "outliers.jpg")
    )
    main(Path(), "labels.csv")
    assert all(
        file.parent.name == row["label"]
        for file, row in zip(files, rows("labels.csv"), strict=True)
    )
    assert CSVDataModule("labels.csv", image_size=32).class_names == ["rose", "tulip"]
