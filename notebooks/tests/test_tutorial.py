"""The tutorial trains, measures, predicts, exports and serves, from top to bottom, without a network."""

import csv
import shutil
import sysconfig
import venv
from importlib.util import find_spec

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT, read_json, succeed

TUTORIAL = ROOT / "notebooks" / "tutorial.ipynb"
NEEDS = {"demo": ("gradio", "<iframe"), "service": ("litserve", '"buttercup":')}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that stands for the project's, with none of its runs."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    for folder in folders:
        if folder.name not in ("runs", "data"):
            (tmp_path / folder.name).symlink_to(folder)
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # where nobody answers
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(not TUTORIAL.exists(), reason="tutorial.ipynb is gone")
def test_the_tutorial_runs_from_top_to_bottom(place):
    notebook = nbformat.read(TUTORIAL, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(place)}}).execute()
    code = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    said = {cell: str(outputs) for cell, outputs in code.items()}
    assert [cell for cell, outputs in code.items() if not outputs] == ["start"]
    assert not [cell for cell, text in said.items() if "error:" in text or "Traceback" in text]
    for cell in ("photos", "predictions"):
        assert any("image/png" in output.get("data", {}) for output in code[cell])
    work = place / "runs" / "tutorial"
    scratch, tuned = (
        read_json(work / run / "checkpoints" / "best.all.metrics.json")
        for run in ("scratch", "tuned")
    )
    assert scratch["total"] == tuned["total"] == 200
    assert tuned["accuracy"] > scratch["accuracy"] + 0.2  # what the tutorial says of pretraining
    labels = list(csv.DictReader((work / "labels.csv").read_text().splitlines()))
    right = sum(f"/{row['label']}/" in row["path"] for row in labels)
    assert f"{right} of 16 right" in said["predictions"]
    assert right > 8
    for cell, (package, answer) in NEEDS.items():
        assert (answer if find_spec(package) else f"pip install {package}") in said[cell]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "packages").exists(), reason="the library is from an index")
def test_the_kernel_that_installs_the_library_finds_it(tmp_path):
    """As in Colab, whose packages are there, but for the library."""
    notebook = nbformat.read(TUTORIAL, as_version=4)
    start, photos = [cell.source for cell in notebook.cells if cell.cell_type == "code"][:2]
    quick = "pip install --no-deps --no-index --no-build-isolation"
    start = start.replace("pip install", quick).replace("gradio litserve", "")
    (tmp_path / "cells.ipy").write_text(f"{start}\n{photos}\nprint(len(files), 'drawn')\n")
    for folder in ("project", "notebooks", "packages"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("tests"))
    for file in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tmp_path)
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv" / "lib").rglob("site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = str(tmp_path / "venv" / "bin" / "python")
    shown = succeed([python, "-m", "IPython", "cells.ipy"], tmp_path, PYTHONPATH="").stdout
    assert "24 drawn" in shown
