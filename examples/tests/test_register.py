"""A run is a version of a registered model of MLflow's, which labels images as the checkpoint does."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

from project import export
from tests.conftest import call, opened, read_json, succeed

mlflow = pytest.importorskip("mlflow", reason="mlflow is no requirement: pip install mlflow")
pytest.importorskip("onnx", reason="of the extra export")


@pytest.mark.slow  # MLflow makes a database
def test_a_registered_run_has_its_metrics_and_files_and_labels_images(tiny_run, workplace):
    best = tiny_run / "checkpoints" / "best.ckpt"
    call(export, best, "--output=model.onnx")
    uri = "sqlite:///mlflow.db"
    command = [sys.executable, "-m", "examples.register", tiny_run, "model.onnx", "flowers"]
    for number in (1, 2):
        done = succeed([*map(str, command), "--alias=champion"], workplace, MLFLOW_TRACKING_URI=uri)
        assert f"flowers, version {number}" in done.stdout
    client = mlflow.MlflowClient(uri)
    version = client.get_model_version_by_alias("flowers", "champion")
    assert int(version.version) == 2
    run = client.get_run(version.run_id)
    assert (
        run.data.metrics["test/accuracy"]
        == read_json(tiny_run / "metrics.json")["test"]["accuracy"]
    )
    files = {file.path for file in client.list_artifacts(version.run_id)}
    assert {"config.yaml", "best.ckpt"} <= files
    mlflow.set_tracking_uri(uri)
    served = mlflow.pyfunc.load_model("models:/flowers@champion")
    model, data = opened(tiny_run)
    test: Any = data.splits["test"]
    images = test.images[:3]
    with torch.inference_mode():
        expected = model(images).softmax(1)
    found = served.predict({"images": images.numpy()})["probabilities"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
