"""Notebooks run from top to bottom, and what they say of runs is what the runs measured."""

import re
import shutil
from pathlib import Path

import helpers
import nbformat
import numpy as np
import pytest
import torch
import yaml
from nbclient import NotebookClient
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from project.analysis import comparison
from project.analysis.evaluation import evaluate_split
from project.analysis.tables import metrics_table
from tests.conftest import ROOT, SLIM, TINY, draw_image, fit, make_folder, opened, read_json

NOTEBOOKS = ROOT / "notebooks"
PLOTS = {
    "explore_checkpoint": "curves confusion classes calibration mistakes gradcam neighbours projection",
    "compare_runs": "curves losses seeds",  # and where two runs differ
    "explore_data": "balance samples augmentation errors",
}
EMBEDDINGS = torch.randn(200, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(
    1, 3, 16
)


@pytest.fixture
def said(workplace, monkeypatch, capsys):
    """Runs a notebook with environment variables, without Jupyter, which takes seconds to start; what it prints."""

    def run(name: str, **variables: object) -> str:
        for variable, value in variables.items():
            monkeypatch.setenv(variable, str(value))
        path = NOTEBOOKS / f"{name}.ipynb"
        if not path.exists():
            pytest.skip(f"{path.name} is gone")
        cells = nbformat.read(path, as_version=4).cells
        code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
        capsys.readouterr()
        exec(re.sub("^%.*", "", code, flags=re.M), {})
        return str(capsys.readouterr().out)

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("CHECKPOINT", raising=False)
    monkeypatch.setattr(helpers, "start", lambda: None)  # stays in this folder
    return run


@pytest.mark.parametrize("kind", ["tiny_run", "multilabel"])
def test_a_notebook_measures_what_the_run_did(kind, request, said):
    run = request.getfixturevalue(kind)
    metrics = read_json(run / "metrics.json")
    draw_image(0.3, seed=0).save("own.png")
    options = {"CHECKPOINT": run / "checkpoints" / "best.ckpt", "IMAGE": "own.png"}
    text = said("explore_checkpoint", **options)
    for split in ("val", "test"):
        assert metrics_table({split: metrics[split]}) in text
    assert text.split()[-1] in metrics["class_names"]


def test_data_of_a_checkpoint_is_explored(tiny_run, said):
    said("explore_data", CHECKPOINT=tiny_run / "checkpoints" / "best.ckpt")


def test_runs_are_compared_by_the_images_that_one_alone_is_right_about(said, tiny_run, monkeypatch):
    fit(*TINY, *SLIM, "--seed_everything=1", "--trainer.default_root_dir=runs", "--name=other")
    runs = (tiny_run, Path("runs/other"))
    compared: list[object] = []
    monkeypatch.setattr(comparison, "mcnemar", compared.append)
    said("compare_runs", RUNS=" ".join(map(str, runs)))
    first, second = (evaluate_split(*opened(run)).correct.tolist() for run in runs)
    assert compared == [{"tiny": first, "other": second}]


def test_duplicates_of_a_folder_are_found(said, workplace):
    make_folder(workplace, dict.fromkeys("abc", 12))
    shutil.copy("a/0.jpg", "a/copy.jpg")
    Path("b/broken.jpg").write_bytes(b"no image")
    text = said("explore_data", FOLDER=workplace)
    assert "1 unreadable files, 1 groups of duplicates" in text
    assert "a/0.jpg = a/copy.jpg" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLOTS if (NOTEBOOKS / f"{name}.ipynb").exists()])
def test_every_cell_runs_in_jupyter_and_draws_without_a_warning(
    name, tiny_run, tmp_path, monkeypatch
):
    for folder in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(folder, str(tmp_path / folder))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CHECKPOINT", str(tiny_run / "checkpoints" / "best.ckpt"))
    other = Path(shutil.copytree(tiny_run, tmp_path / "other"))
    config = yaml.safe_load((other / "config.yaml").read_text()) | {"seed_everything": 1}
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("RUNS", f"{tiny_run} {other}")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    outputs = [(cell.id, out) for cell in notebook.cells for out in cell.get("outputs", [])]
    assert [out for _, out in outputs if out.get("name") == "stderr"] == []
    assert {cell for cell, out in outputs if "image/png" in out.get("data", {})} == {
        *PLOTS[name].split()
    }


def test_neighbours_and_the_projection_are_those_of_scikit_learn():
    reference = NearestNeighbors(n_neighbors=5, metric="cosine").fit(EMBEDDINGS.numpy())
    found = helpers.nearest(EMBEDDINGS, EMBEDDINGS[:20], 5).numpy()
    expected = reference.kneighbors(EMBEDDINGS[:20].numpy(), return_distance=False)
    assert np.array_equal(found, expected)
    points = helpers.projected(EMBEDDINGS).numpy()
    components = PCA(2, svd_solver="full").fit_transform(EMBEDDINGS.double().numpy())
    signs = np.sign(points[0] * components[0])
    np.testing.assert_allclose(points, signs * components, rtol=1e-6, atol=1e-9)
