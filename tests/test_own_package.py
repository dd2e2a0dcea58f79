"""A classifier, a network, metrics and data of the user's own, through every command."""

import gc
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkeeper.exact import UserError
from lightkeeper.images._checkpoint import ABOUT
from lightkeeper.images._settings import subclasses
from torch import nn

import project
from project import export
from project.analysis.plots import read_curves
from project.data import ImageDataModule
from project.model import ImageClassifier
from tests.conftest import (
    ROOT,
    SLIM,
    TINY,
    call,
    cases,
    draw_image,
    evaluate,
    fit,
    label,
    load,
    one_line,
    read_json,
    report_of,
)

SOURCE = """
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError, MulticlassCohenKappa

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from tests.conftest import SmallNetwork

class PackagedClassifier(ImageClassifier):
    def configure_metrics(self):
        classes = len(self.class_names)
        return super().configure_metrics() | {
            "calibration_error": MulticlassCalibrationError(classes),
            "kappa": MulticlassCohenKappa(classes),
            "each": MulticlassAccuracy(classes, average="none"),
        }

class OwnNet(SmallNetwork): pass
class OwnFlowers(SyntheticFlowersDataModule): pass
"""
OWN = [
    "--model=own_package.PackagedClassifier",
    "--model.arch=own_package.OwnNet",
    "--data=own_package.OwnFlowers",
]


def forget() -> None:
    """As in another process, which has not imported the module."""
    sys.modules.pop("own_package", None)
    gc.collect()
    for base in (ImageClassifier, nn.Module, ImageDataModule):
        for cls in subclasses(base):
            if cls.__module__ == "own_package":
                cls.__name__ = "Forgotten"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, in the folder of the module."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_package.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        fit(*TINY, *OWN, "--trainer.max_epochs=4", "--monitor=val/calibration_error", "--name=own")
        yield folder / "runs" / "own"


@pytest.fixture
def best(run) -> Iterator[Path]:
    """Its checkpoint, while the module is not imported."""
    forget()
    yield run / "checkpoints" / "best.ckpt"
    forget()


def test_an_own_metric_chooses_the_best_checkpoint_and_one_of_several_numbers_is_not_logged(
    run, best
):
    curves = read_curves(run)
    curve = curves["val/calibration_error"]
    about, metrics = load(best)[ABOUT], read_json(run / "metrics.json")
    chosen = {"monitor": "val/calibration_error", "mode": "min"}
    assert about["selection"] == metrics["selection"] == chosen
    assert about["step"] == metrics["step"] == 1 + min(curve, key=lambda step: curve[step])
    assert len(set(curve.values())) == 4
    assert len(metrics["test"]["each"]) == 8
    assert not any("each" in name for name in curves)


@cases(
    "output command content",
    ("metrics.json", evaluate, b'"kappa"'),
    (
        "labels.csv",
        lambda best, *args: label(best, "photo.png", *args),
        rb"^[^\n]+\nphoto\.png,[^\n]+,\s*$",
    ),
    ("own.pt2", lambda *args: call(export, *args), b""),
    (
        "page.html",
        lambda best, *args: report_of(Path(best).parents[1], *args),
        b"Most confident mistakes",
    ),
)
def test_each_command_opens_the_checkpoint_where_its_module_is_imported(
    best, capsys, output, command, content
):
    draw_image(0.3, seed=0).save("photo.png")
    options = [str(best), f"--output={output}"]
    refused = one_line(lambda: command(*options), capsys)
    assert "give --import with" in refused
    wrong = one_line(lambda: command(*options, "--import=own_packages"), capsys)
    assert "No module named 'own_packages'" in wrong
    command(*options, "--import=own_package")
    assert re.search(content, Path(output).read_bytes())


class FixedClassifier(ImageClassifier):
    """Has a network of its own choice, and an option."""

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Any,
        gamma: int = 1,
    ) -> None:
        super().__init__(class_names, preprocessing, arch="resnet9_slim")
        self.gamma = gamma


MINE = """
from lightning.pytorch import Callback
from torchmetrics.classification import MulticlassCohenKappa

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier


class MyModel(ImageClassifier):
    def configure_metrics(self):
        return {**super().configure_metrics(), "kappa": MulticlassCohenKappa(len(self.class_names))}


class MyData(SyntheticFlowersDataModule):
    pass


class MyCallback(Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("val/mine", float(trainer.current_epoch))
"""


@pytest.mark.slow
def test_classes_inside_the_package_behave_as_those_outside(tmp_path):
    package = Path(project.__file__).parent
    shutil.copytree(package, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    runs = []
    for module in ("mine", "project.model.mine"):
        tmp_path.joinpath(*module.split(".")).with_suffix(".py").write_text(MINE)
        flags = [
            *(*TINY, *SLIM, "--trainer.max_epochs=3", f"--name={module}", "--monitor=val/kappa"),
            *(f"--model={module}.MyModel", f"--data={module}.MyData"),
            *(f"--trainer.callbacks+={module}.MyCallback", "--trainer.callbacks+=EarlyStopping"),
            *("--trainer.callbacks.monitor=val/mine", "--callbacks.images_per_second=false"),
        ]
        command = [sys.executable, "-m", "project.fit", *flags]
        subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True
        )
        runs.append(tmp_path / "runs" / module)
    outside, inside = ([run / f"metrics.{kind}" for kind in ("csv", "json")] for run in runs)
    assert [file.read_text() for file in outside] == [file.read_text() for file in inside]
    assert "kappa" in inside[1].read_text()


def test_a_class_that_fixes_its_network_resumes_and_gives_way_to_no_other_class(workplace):
    flags = [
        f"--model={__name__}.FixedClassifier",
        "--model.gamma=3",
    ]
    run = fit(*TINY, *flags).run.path
    assert "fixedclassifier" in run.name.lower()
    (run / "metrics.json").unlink()
    further = ["--trainer.max_epochs=2", f"--name={run.name}"]
    with pytest.raises(UserError, match=r"--model is .*ImageClassifier, not .*FixedClassifier"):
        fit(*TINY, *SLIM, *further)
    assert fit(*TINY, *flags, *further).trainer.global_step == 8
    loaded = ImageClassifier.load_from_checkpoint(run / "checkpoints" / "best.ckpt")
    assert isinstance(loaded, FixedClassifier)
    assert loaded.gamma == 3
