"""The tutorial trains, measures, predicts, exports and serves, from top to bottom, without a network."""

import csv
from importlib.util import find_spec

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT, read_json

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
