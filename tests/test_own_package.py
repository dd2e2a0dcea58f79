"""A classifier, a network, metrics and data of the user's own, through every command."""

import gc
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from project import export, predict, report
from project.analysis.plots import read_curves
from project.data import ImageDataModule
from project.engine.run.checkpoint import ABOUT
from project.engine.run.settings import subclasses
from project.model import ImageClassifier
from tests.conftest import TINY, as_in_a_terminal, draw_image, evaluate, fit
from tests.small import load, one_line, rows

SOURCE = '''
import torch
from torch import nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassCalibrationError, MulticlassCohenKappa

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier


class CalibratedClassifier(ImageClassifier):
    def configure_metrics(self) -> dict[str, Metric]:
        return {"calibration_error": MulticlassCalibrationError(num_classes=len(self.class_names))}


class OwnNet(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 5, stride=2), nn.BatchNorm2d(12), nn.ReLU())
        self.classify = nn.Linear(12, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(x).mean((2, 3)))


class PackagedClassifier(CalibratedClassifier):
    def configure_metrics(self) -> dict[str, Metric]:
        return {**super().configure_metrics(), "kappa": MulticlassCohenKappa(num_classes=len(self.class_names))}


class OwnFlowers(SyntheticFlowersDataModule):
    """The drawn flowers under a name of one's own."""
'''
OWN = ["--model=own_package.PackagedClassifier", "--model.arch=own_package.OwnNet", "--data=own_package.OwnFlowers"]
ALONE = ["--trainer.accelerator=cpu", "--trainer.devices=1"]


def forget() -> None:
    """As in another process, which has not imported the module."""
    sys.modules.pop("own_package", None)
    gc.collect()
    for base in (ImageClassifier, nn.Module, ImageDataModule):
        for found in subclasses(base):
            if found.__module__ == "own_package":
                found.__name__ = "Forgotten"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run; the module stands in the folder in which it was started, and is not imported any more."""
    place = tmp_path_factory.mktemp("own")
    (place / "own_package.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        patch.chdir(place)
        fit(*TINY, *OWN, "--trainer.max_epochs=4", "--monitor=val/calibration_error", "--name=own")
        forget()
        yield place / "runs" / "own"
        forget()


@pytest.fixture
def best(run) -> Iterator[Path]:
    yield run / "checkpoints" / "best.ckpt"
    forget()


def test_an_own_metric_chooses_the_best_checkpoint_and_is_printed(run, best, capsys):
    curve = read_curves(run)["val/calibration_error"]
    about, metrics = load(best)[ABOUT], json.loads((run / "metrics.json").read_text())
    assert about["selection"] == metrics["selection"] == {"monitor": "val/calibration_error", "mode": "min"}
    assert about["step"] == metrics["step"] == 1 + min(curve, key=lambda step: curve[step])
    assert len(set(curve.values())) == 4
    for split in ("val", "test"):
        evaluate(str(best), f"--split={split}", "--output=m.json", "--import=own_package")
        measured = json.loads(Path("m.json").read_text())
        for name in ("kappa", "calibration_error"):
            assert measured[name] == pytest.approx(metrics[split][name], abs=1e-6)
        printed = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert ["kappa", f"{measured['kappa']:.4f}"] in printed
        forget()


def labelled(best: Path, *args: str) -> None:
    draw_image(0.3, seed=0).save("photo.png")
    options = [str(best), "photo.png", "--output=labels.csv", "--overwrite", "--num_workers=0", *ALONE]
    with as_in_a_terminal():
        assert predict.predict(predict.parse([*options, *args])) == 0
    assert len(rows(Path("labels.csv"))) == 1


def exported(best: Path, *args: str) -> None:
    with as_in_a_terminal():
        export.export(export.parse([str(best), "--output=own.pt2", *args]))
    assert Path("own.pt2").exists()


def reported(best: Path, *args: str) -> None:
    with as_in_a_terminal():
        page = report.report(report.parse([str(best.parents[1]), "--output=page.html", *args]))
    assert "Most confident mistakes" in page.read_text()


def measured(best: Path, *args: str) -> None:
    evaluate(str(best), "--output=metrics.json", *args)


@pytest.mark.parametrize("command", [measured, labelled, exported, reported])
def test_each_command_opens_the_checkpoint_where_its_module_is_imported(best, capsys, command: Callable[..., Any]):
    line = one_line(lambda: command(best), capsys)
    assert "give --import with the module that defines it" in line
    assert "'own_packages' cannot be imported" in one_line(lambda: command(best, "--import=own_packages"), capsys)
    command(best, "--import=own_package")
    assert "without images" not in capsys.readouterr().err
