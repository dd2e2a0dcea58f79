"""The notebook runs from top to bottom on a checkpoint, and its metrics are those of the run."""

import base64
import io
import json
import os
import subprocess
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from PIL import Image

from project.errors import UserError
from project.explore.data import open_data
from project.explore.tables import class_table, metrics_table
from project.model.metrics import Metrics

REPOSITORY = Path(__file__).parents[1]
NOTEBOOK = REPOSITORY / "notebooks" / "explore_checkpoint.ipynb"
PICTURES = ["curves", "confusion", "classes", "mistakes", "filters"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The notebook calculates as this process does, without a GPU, and leaves nothing in the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        patch.delenv("CHECKPOINT", raising=False)
        yield patch


def execute(folder, *, cells=None, allow_errors=False):
    """Runs the notebook, or only the cells named, with a folder as Jupyter's current one."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if cells is None or cell.id in cells]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=resources, allow_errors=allow_errors).execute()
    return {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream").rstrip("\n")


@pytest.fixture(scope="module")
def executed(environment, tiny_run):
    environment.setenv("CHECKPOINT", str(tiny_run / "checkpoints" / "best.ckpt"))
    outputs = execute(NOTEBOOK.parent)
    environment.delenv("CHECKPOINT")
    return outputs


@pytest.fixture(scope="module")
def metrics(tiny_run):
    return json.loads((tiny_run / "metrics.json").read_text())


@pytest.fixture
def empty_project(environment, tmp_path):
    """The code without any run."""
    (tmp_path / "project").symlink_to(REPOSITORY / "project")
    return tmp_path


def test_every_cell_runs_without_an_error_or_a_warning(executed):
    unwanted = [
        (name, output)
        for name, outputs in executed.items()
        for output in outputs
        if output.output_type == "error" or output.get("name") == "stderr"
    ]
    assert unwanted == []


def test_test_figures_are_those_of_the_run(executed, metrics):
    assert printed(executed["test"]) == metrics_table({"test": metrics["test"]})


def test_figures_of_each_class_are_those_of_the_run(executed, metrics):
    measured = Metrics(0.0, torch.tensor(metrics["test"]["confusion_matrix"]), None)
    assert printed(executed["classes"]) == class_table(metrics["class_names"], measured.per_class)


def test_validation_figures_are_those_of_the_run(executed, metrics):
    assert printed(executed["metrics"]) == metrics_table({"val": metrics["val"]})


def test_checkpoint_tells_classes_and_versions(executed, metrics):
    text = printed(executed["about"])
    assert all(name in text for name in metrics["class_names"])
    assert all(version in text for version in metrics["versions"].values())


@pytest.mark.parametrize("cell", PICTURES)
def test_image_is_drawn(executed, cell):
    images = [output.data["image/png"] for output in executed[cell] if "image/png" in output.get("data", {})]
    assert len(images) == 1
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(images[0]))).convert("RGB"))
    assert min(pixels.shape[:2]) > 100
    assert pixels.std() > 0


def test_without_a_checkpoint_one_line_says_what_to_do(empty_project):
    outputs = execute(empty_project, cells=["checkpoint"], allow_errors=True)
    assert [output.get("traceback") for output in outputs["checkpoint"]] == [
        ["error: there is no checkpoint under runs/ yet; train one with `make fit`, or set CHECKPOINT above"]
    ]


def test_newest_checkpoint_is_taken_where_none_is_named(empty_project):
    for age, name in enumerate(["newest", "older", "oldest"]):
        checkpoint = empty_project / "runs" / name / "checkpoints" / "best.ckpt"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.touch()
        os.utime(checkpoint, (1e9 - age, 1e9 - age))
    outputs = execute(empty_project, cells=["checkpoint"])
    assert printed(outputs["checkpoint"]) == "runs/newest/checkpoints/best.ckpt"


def test_checkpoint_cannot_choose_what_is_run(tmp_path):
    mark = tmp_path / "mark"
    data = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(mark)]}}
    source = next(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.id == "data")
    with pytest.raises(UserError, match=r"trained on subprocess\.Popen, which is no data module"):
        exec(source, {"open_data": open_data, "about": {"data": data}})
    assert not mark.exists()


@pytest.mark.parametrize(("user", "option"), [(0, True), (1000, False)])
def test_make_notebook_lets_root_alone_start_jupyter_as_root(tmp_path, user, option):
    fake = tmp_path / "id"
    fake.write_text(f"#!/bin/sh\necho {user}\n")
    fake.chmod(0o755)
    make = ["make", "--dry-run", "--old-file=.venv/installed", "notebook"]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(make, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in said.splitlines() if "jupyter" in line)
    assert ("--allow-root" in line.split()) == option


def test_committed_notebook_has_no_outputs():
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
