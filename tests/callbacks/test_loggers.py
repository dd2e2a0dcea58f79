"""Figures of a run reach W&B and MLflow, offline, by the packages themselves."""

from pathlib import Path

import pytest

from tests.conftest import SLIM, TINY, fit

FIGURES = {"train/first_batch", "val/confusion_matrix", "test/confusion_matrix"}
FIGURES |= {"test/confident_mistakes"}
OFFLINE = {
    "wandb": ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true"],
    "mlflow": ["--trainer.logger=MLFlowLogger", "--trainer.logger.tracking_uri=sqlite:///runs.db"],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow stands on
@pytest.mark.parametrize("package", OFFLINE)
def test_the_figures_of_a_run_reach_its_logger(package, workplace, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is no requirement")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = workplace / "artifacts"
    place = [f"--trainer.logger.artifact_location={folder}"] if package == "mlflow" else []
    fit(*TINY, *SLIM, "--name=run", "--model.optimizer.lr=0.001", *OFFLINE[package], *place)
    if package == "wandb":
        (folder,) = Path("runs/run/wandb").glob("offline-run-*/files/media/images")
    images = [str(path.relative_to(folder)) for path in folder.rglob("*.png")]
    assert {tag for tag in FIGURES for name in images if tag in name} == FIGURES, images
