"""The notebooks run from top to bottom, and their metrics are those of the runs."""

import ast
import base64
import io
import json
import os
import re
import shutil
from pathlib import Path

import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient
from PIL import Image

from project.analysis.evaluation import evaluate_split
from project.analysis.notebook import find_checkpoint, find_runs, start
from project.analysis.tables import metrics_table
from project.engine.errors import UserError
from tests.conftest import TINY, draw_image, fit, make_folder, opened

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "explore_checkpoint.ipynb"
NOTEBOOKS = sorted(NOTEBOOK.parent.glob("*.ipynb"))
PLOTS = {
    "explore_checkpoint": "curves confusion classes calibration mistakes gradcam neighbours projection",
    "compare_runs": "curves losses differences",
    "explore_data": "balance samples augmentation errors",
}


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
    notebook = nbformat.read(NOTEBOOK.with_name(f"{name}.ipynb"), as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables.items():
            patch.setenv(variable, str(value))
        NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    executed = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    for cell in {*PLOTS[name].split()} - ({"errors"} if "FOLDER" in variables else set()):  # which takes a model
        (image,) = [out.data["image/png"] for out in executed[cell] if "image/png" in out.get("data", {})]
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB"))
        assert min(pixels.shape[:2]) > 100
        assert pixels.std() > 0
    errors = [output for outputs in executed.values() for output in outputs if output.get("name") == "stderr"]
    return {cell: printed(outputs) for cell, outputs in executed.items()}, printed(errors)


def evaluated(source, names):
    """What the last line of a cell is, where it is an expression; without Jupyter, which takes seconds to start."""
    *lines, last = ast.parse(re.sub("^%.*", "", source)).body
    exec(compile(ast.Module([*lines, *([] if isinstance(last, ast.Expr) else [last])], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


def cells_of(path, capsys):
    """Values and texts of a notebook's cells, one after the other."""
    names: dict[str, object] = {}
    shown, said = {}, {}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            shown[cell.id] = evaluated(cell.source, names)
            said[cell.id] = capsys.readouterr().out.rstrip("\n")
    return shown, said


@pytest.mark.parametrize("kind", ["tiny_run", "multilabel", "attributes"])
def test_cells_measure_what_the_run_did_and_draw(kind, request, at_work, monkeypatch, capsys):
    run = request.getfixturevalue(kind)
    metrics = json.loads((run / "metrics.json").read_text())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    draw_image(0.3, seed=0).save("own.png")  # beside the notebook, which works in the folder that holds runs/
    monkeypatch.setenv("CHECKPOINT", str(run / "checkpoints" / "best.ckpt"))
    monkeypatch.setenv("IMAGE", "own.png")
    shown, said = cells_of(NOTEBOOK, capsys)
    assert said["metrics"] == metrics_table({"val": metrics["val"]})
    assert said["test"] == metrics_table({"test": metrics["test"]})
    assert said["own"].splitlines()[0].split()[-1] in metrics["class_names"]
    drawn = {cell for cell, value in shown.items() if isinstance(value, Figure)}
    assert drawn == set(PLOTS["explore_checkpoint"].split())
    shown, _ = cells_of(NOTEBOOK.with_name("explore_data.ipynb"), capsys)
    assert {cell for cell, value in shown.items() if isinstance(value, Figure)} == set(PLOTS["explore_data"].split())


@pytest.mark.slow
def test_every_cell_runs_without_a_warning_and_plots_are_drawn(environment, tiny_run, tmp_path):
    draw_image(0.3, seed=0).save(tmp_path / "own.png")
    checkpoint = {"CHECKPOINT": tiny_run / "checkpoints" / "best.ckpt", "IMAGE": tmp_path / "own.png"}
    for notebook in ("explore_checkpoint", "explore_data"):
        assert run_with(notebook, **checkpoint)[1] == ""


@pytest.mark.slow
def test_runs_are_compared_by_the_images_that_one_alone_is_right_about(environment, tiny_run, tmp_path):
    fit(*TINY, "--seed_everything=1", f"--trainer.default_root_dir={tmp_path}", "--name=resnet")
    runs = (tiny_run, tmp_path / "resnet")
    said, errors = run_with("compare_runs", RUNS=" ".join(map(str, runs)))
    assert errors == ""
    rights = [evaluate_split(*opened(run)).correct for run in runs]
    alone = [int((mine & ~other).sum()) for mine, other in (rights, rights[::-1])]
    assert f"tiny alone is right about {alone[0]} images, resnet alone about {alone[1]}" in said["mcnemar"]
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


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
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
