"""Notebooks and scripts run from top to bottom, and what they say of runs is what the runs measured."""

import ast
import base64
import io
import json
import os
import re
import runpy
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image, ImageOps

from project.analysis.evaluation import evaluate_split
from project.analysis.notebook import find_checkpoint, find_runs, start
from project.analysis.tables import metrics_table
from project.data import CSVDataModule
from project.engine.errors import UserError
from tests.conftest import QUIET, SLIM, TINY, TINY_TRAINER, draw_image, fit, make_folder, opened
from tests.small import rows

NOTEBOOKS, SCRIPTS = (Path(__file__).parents[1] / name for name in ("notebooks", "scripts"))
PLOTS = {
    "explore_checkpoint": "curves confusion classes calibration mistakes gradcam neighbours projection",
    "compare_runs": "curves losses differences",
    "explore_data": "balance samples augmentation errors",
}
NO_WEIGHTS = shutil.ignore_patterns("*.ckpt")  # to copy a run without what takes most of its room


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The notebook calculates as this process does, without a GPU, and leaves nothing in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.delenv("CHECKPOINT", raising=False)
        yield patch


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream").rstrip("\n")


def run_with(name, **variables):
    """Runs a notebook in Jupyter with these environment variables; the texts of each cell, and all that is on standard error."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables.items():
            patch.setenv(variable, str(value))
        NotebookClient(
            notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS)}}
        ).execute()
    executed = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for cell in {*PLOTS[name].split()} - (
        {"errors"} if "FOLDER" in variables else set()
    ):  # which takes a model
        (image,) = [
            out.data["image/png"] for out in executed[cell] if "image/png" in out.get("data", {})
        ]
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB"))
        assert min(pixels.shape[:2]) > 100
        assert pixels.std() > 0
    errors = [
        output
        for outputs in executed.values()
        for output in outputs
        if output.get("name") == "stderr"
    ]
    return {cell: printed(outputs) for cell, outputs in executed.items()}, printed(errors)


def cells_of(name, capsys):
    """Values of the last lines of a notebook's cells, and their texts; without Jupyter, which takes seconds to start."""
    names: dict[str, Any] = {}
    shown, said = {}, {}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "code":
            statements: Any = ast.parse(re.sub("^%.*", "", cell.source)).body
            last = statements.pop() if isinstance(statements[-1], ast.Expr) else None
            exec(compile(ast.Module(statements, []), "cell", "exec"), names)
            shown[cell.id] = last and eval(
                compile(ast.Expression(last.value), "cell", "eval"), names
            )
            said[cell.id] = capsys.readouterr().out.rstrip("\n")
    return shown, said


@pytest.mark.parametrize("kind", ["tiny_run", "multilabel", "attributes"])
def test_cells_measure_what_the_run_did_and_draw(kind, request, at_work, monkeypatch, capsys):
    run = request.getfixturevalue(kind)
    metrics = json.loads((run / "metrics.json").read_text())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    draw_image(0.3, seed=0).save(
        "own.png"
    )  # beside the notebook, which works in the folder that holds runs/
    monkeypatch.setenv("CHECKPOINT", str(run / "checkpoints" / "best.ckpt"))
    monkeypatch.setenv("IMAGE", "own.png")
    for name in ("explore_data", "explore_checkpoint"):
        shown, said = cells_of(name, capsys)
        assert {cell for cell, value in shown.items() if isinstance(value, Figure)} == set(
            PLOTS[name].split()
        )
    assert said["metrics"] == metrics_table({"val": metrics["val"]})
    assert said["test"] == metrics_table({"test": metrics["test"]})
    assert said["own"].splitlines()[0].split()[-1] in metrics["class_names"]


@pytest.mark.slow
def test_every_cell_runs_without_a_warning_and_plots_are_drawn(environment, tiny_run, tmp_path):
    draw_image(0.3, seed=0).save(tmp_path / "own.png")
    checkpoint = {
        "CHECKPOINT": tiny_run / "checkpoints" / "best.ckpt",
        "IMAGE": tmp_path / "own.png",
    }
    for notebook in ("explore_checkpoint", "explore_data"):
        assert run_with(notebook, **checkpoint)[1] == ""


@pytest.mark.slow
def test_runs_are_compared_by_the_images_that_one_alone_is_right_about(
    environment, tiny_run, tmp_path
):
    fit(*TINY, "--seed_everything=1", f"--trainer.default_root_dir={tmp_path}", "--name=resnet")
    runs = (tiny_run, tmp_path / "resnet")
    said, errors = run_with("compare_runs", RUNS=" ".join(map(str, runs)))
    assert errors == ""
    rights = [evaluate_split(*opened(run)).correct for run in runs]
    alone = [int((mine & ~other).sum()) for mine, other in (rights, rights[::-1])]
    assert (
        f"tiny alone is right about {alone[0]} images, resnet alone about {alone[1]}"
        in said["mcnemar"]
    )
    assert {"model.arch", "seed_everything"} <= set(said["settings"].split())


@pytest.mark.slow
def test_duplicates_of_a_folder_are_found(environment, tmp_path):
    make_folder(tmp_path, dict.fromkeys("abc", 12))
    shutil.copy(tmp_path / "a" / "0.jpg", tmp_path / "a" / "copy.jpg")
    (tmp_path / "b" / "broken.jpg").write_bytes(b"no image")
    said, errors = run_with("explore_data", FOLDER=tmp_path)
    assert "1 of 38 files cannot be read as images and are left out" in said["data"]
    assert errors in said["data"]  # and nothing else
    assert "1 unreadable files, 1 groups of duplicates" in said["duplicates"]
    assert {"a/0.jpg", "a/copy.jpg"} <= set(said["duplicates"].split())


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_committed_notebook_has_no_outputs(path):
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.fixture
def at_work(tmp_path, monkeypatch):
    """A notebook's folder, beside a folder of runs."""
    for name in ("runs", "notebooks"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setattr("project.analysis.notebook._here", None)
    for name in ("CHECKPOINT", "RUNS", "IMPORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_paths_start_where_the_commands_do_and_the_newest_checkpoint_is_found(at_work):
    for _ in range(2):  # the cell is run again in the same kernel
        assert start() == at_work / "notebooks"
        assert Path.cwd() == at_work
    with pytest.raises(UserError, match="there is no checkpoint under runs/ yet") as error:
        find_checkpoint()
    assert error.value._render_traceback_() == [f"error: {error.value}"]  # type: ignore[attr-defined]  # asked for by IPython
    for age, name in enumerate(["newest", "older"]):
        checkpoint = Path("runs", name, "checkpoints", "best.ckpt")
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        os.utime(checkpoint, (1e9 - age, 1e9 - age))
    assert find_checkpoint() == Path("runs/newest/checkpoints/best.ckpt")


def test_runs_of_the_same_name_have_their_folders(at_work, monkeypatch):
    start()
    with pytest.raises(UserError, match="two finished runs are needed"):
        find_runs()
    monkeypatch.setenv("RUNS", "here/run there/run")
    assert list(find_runs()) == ["here/run", "there/run"]


@pytest.fixture
def script(monkeypatch):
    """Imports a script as when Python runs it; what it defines."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return lambda name: runpy.run_path(str(SCRIPTS / name))


def test_the_table_of_seeds_has_mean_and_spread(tiny_run, script, capsys):
    script("seeds.py")["main"]([tiny_run, tiny_run])
    count, _, test, training, _ = capsys.readouterr().out.splitlines()
    accuracy = 100 * json.loads((tiny_run / "metrics.json").read_text())["test"]["accuracy"]
    assert count == "n = 2"
    assert test.split()[3:6] == [f"{accuracy:.2f}", "±", "0.00"]
    assert float(training.split()[2]) > 0


def test_the_table_of_recipes_compares_runs_of_one_seed(tiny_run, workplace, script):
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

    table = script("recipes.py")["table"](
        {"none": runs("none", 0.5, 0.6), "ema": runs("ema", 0.55, 0.63)}
    )
    *_, alone, ema = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
    )
    assert alone[:4] == ["none", "2", "55.00% ± 7.07", ""]
    assert ema[:4] == ["ema", "2", "59.00% ± 5.66", "+4.00 ± 1.41"]
    assert ema[5] == "1.00 (1.00 to 1.00)"


def test_folds_classify_each_image_once_by_the_run_that_has_not_seen_it(
    workplace, script, monkeypatch, capsys
):
    classes, started = ("rose", "tulip"), []
    images = make_folder(workplace / "images", dict.fromkeys(classes, 14))

    def run(command, check):
        started.append(fit(*command[3:]))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr("subprocess.run", run)
    data = ["--data=images", "--data.split_seed=2", "--data.image_size=32", "--data.batch_size=4"]
    for _ in range(2):  # the second time, nothing is left to train
        script("folds.py")["main"]("cv", 2, [*data, *TINY_TRAINER, *QUIET, *SLIM])
        assert len(started) == 2
    found = rows("runs/cv/out_of_fold.csv")
    assert sorted(row["path"] for row in found) == sorted(map(str, images.rglob("*.jpg")))
    assert all(Path(row["path"]).parent.name == row["label"] for row in found)
    counted = Counter((row["fold"], row["label"], row["predicted"]) for row in found)
    correct = 0
    for fold in "12":
        test = json.loads(Path(f"runs/cv/fold_{fold}/metrics.json").read_text())["test"]
        assert test["confusion_matrix"] == [
            [counted[fold, label, guess] for guess in classes] for label in classes
        ]
        correct += test["correct"]
    assert f"({correct} of 28)" in capsys.readouterr().out


def test_near_duplicates_are_paired_those_in_two_classes_first(workplace, script, capsys):
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
    script("near_duplicates.py")["main"]("images", "pairs.csv")
    found = [{Path(row["path"]).stem, Path(row["other_path"]).stem} for row in rows("pairs.csv")]
    assert sorted(map(sorted, found)) == [["1", "small"], ["2", "mirrored"]]
    captured = capsys.readouterr()
    assert "2 pairs, 1 of two labels" in captured.out
    assert "broken.png is left out" in captured.err
    assert Path("pairs.jpg").read_bytes().startswith(b"\xff\xd8")


@pytest.mark.slow
def test_labels_that_folds_contradict_are_listed_and_corrected(workplace, script):
    pytest.importorskip("cleanlab", reason="cleanlab is an extra")
    files = sorted(make_folder(workplace / "images", {"rose": 20, "tulip": 20}).rglob("*.jpg"))
    wrong = {files[3], files[30]}
    lines = ["path,label,predicted,fold,probability of rose,probability of tulip"]
    for path in files:
        label, other = path.parent.name, "tulip" if path.parent.name == "rose" else "rose"
        shares = "0.9,0.1" if label == "rose" else "0.1,0.9"
        shares = (
            "0.6,0.4" if path == files[10] else shares
        )  # its label is right, but it is no typical one
        lines.append(f"{path},{other if path in wrong else label},{label},1,{shares}")
    Path("out_of_fold.csv").write_text("\n".join(lines))
    main = script("label_errors.py")["main"]
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
