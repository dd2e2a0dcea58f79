"""A classifier, a network, metrics and data of the user's own, through every command."""

import gc
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from PIL import Image
from torch import nn

from project.analysis.plots import read_curves
from project.data import ImageDataModule
from project.engine.errors import UserError
from project.engine.run.checkpoint import ABOUT
from project.engine.run.settings import subclasses
from project.export import ExportCLI
from project.model import ImageClassifier
from tests.conftest import SLIM, TINY, call, cases, draw_image, evaluate, fit, label, report_of
from tests.model.test_classifier import Memory, classifier, trainer
from tests.small import load, one_line, read_json, rows

SOURCE = """
from torchmetrics.classification import MulticlassCalibrationError, MulticlassCohenKappa

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from tests.engine.toy import SmallNetwork

class CalibratedClassifier(ImageClassifier):
    def configure_metrics(self):
        return super().configure_metrics() | {"calibration_error": MulticlassCalibrationError(num_classes=len(self.class_names))}

class PackagedClassifier(CalibratedClassifier):
    def configure_metrics(self):
        return {**super().configure_metrics(), "kappa": MulticlassCohenKappa(num_classes=len(self.class_names))}

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
    about, metrics = load(best)[ABOUT], read_json(run / "metrics.json")
    assert (
        about["selection"]
        == metrics["selection"]
        == {"monitor": "val/calibration_error", "mode": "min"}
    )
    assert about["step"] == metrics["step"] == 1 + min(curve, key=lambda step: curve[step])
    assert len(set(curve.values())) == 4
    evaluate(str(best), "--output=m.json", "--import=own_package")
    measured = read_json("m.json")
    for name in ("kappa", "calibration_error"):
        assert measured[name] == pytest.approx(metrics["test"][name], abs=1e-6)
    assert ["kappa", f"{measured['kappa']:.4f}"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


@cases(
    "output command content",
    ("metrics.json", evaluate, b'"kappa"'),
    (
        "labels.csv",
        lambda best, *args: label(best, "photo.png", *args),
        rb"^[^\n]+\nphoto\.png,[^\n]+,\s*$",
    ),
    ("own.pt2", lambda *args: call(ExportCLI(), *args), b""),
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
    assert "give --import with the module that defines it" in one_line(
        lambda: command(*options), capsys
    )
    wrong = one_line(lambda: command(*options, "--import=own_packages"), capsys)
    assert "No module named 'own_packages'" in wrong
    command(*options, "--import=own_package")
    assert "without images" not in capsys.readouterr().err
    assert re.search(content, Path(output).read_bytes())


class FixedClassifier(ImageClassifier):
    """Has a network of its own choice, and two options."""

    def __init__(
        self,
        class_names: list[str],
        preprocessing: Any,
        gamma: int = 1,
        report: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(class_names, preprocessing, arch="resnet9_slim")
        self.gamma = gamma


def test_a_class_that_fixes_its_network_resumes_and_gives_way_to_no_other_class(workplace, capsys):
    flags = [
        f"--model={__name__}.FixedClassifier",
        "--model.gamma=3",
        "--model.report=builtins.print",
    ]
    run = fit(*TINY, *flags).run.path
    assert "fixedclassifier" in run.name.lower()
    wrong = one_line(lambda: fit(*TINY, *flags, "--model.lr_scheduler.lrf=0.1"), capsys)
    assert "no option '--model.lr_scheduler.lrf' of FixedClassifier" in wrong
    (run / "metrics.json").unlink()
    further = ["--trainer.max_epochs=2", f"--name={run.name}"]
    with pytest.raises(
        UserError,
        match=r"--model is project.*ImageClassifier, not .*FixedClassifier, which cannot change",
    ):
        fit(*TINY, *SLIM, *further)
    assert fit(*TINY, *flags, *further).trainer.global_step == 8
    best = run / "checkpoints" / "best.ckpt"
    loaded: Any = ImageClassifier.load_from_checkpoint(best)
    # what could name code is left out
    assert load(best)["hyper_parameters"].keys() == {"class_names", "preprocessing", "gamma"}
    assert (type(loaded), loaded.gamma) == (FixedClassifier, 3)


class Careless(ImageClassifier):
    """Calls the few hooks that it must, prints, returns nothing from its evaluation, and builds its optimizer itself."""

    example_input_array = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)

    def _nothing(self, *args, **kwargs) -> None:
        self.print("printed by the model")

    setup = on_fit_start = on_train_start = on_train_batch_start = on_train_batch_end = (
        on_train_epoch_end
    ) = _nothing
    on_validation_start = on_validation_epoch_end = on_test_start = on_test_epoch_end = (
        on_train_end
    ) = _nothing

    def configure_callbacks(self):
        callbacks: Any = super().configure_callbacks()
        return [*callbacks, LambdaCallback(on_fit_end=self._nothing)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["own"] = 1

    def validation_step(self, batch, batch_idx: int):
        super().validation_step(batch, batch_idx)

    def test_step(self, batch, batch_idx: int):
        super().test_step(batch, batch_idx)

    def configure_optimizers(self):
        return torch.optim.Adadelta(self.parameters())


def test_hooks_without_super_that_print_leave_metrics_plots_and_checkpoints_as_they_are(
    workplace, capsys
):
    flags = [
        *TINY,
        *SLIM,
        f"--model={__name__}.Careless",
        "--trainer.enable_progress_bar=true",
        "--name=run",
    ]
    cli = fit(*flags, drawn=True)
    (row,) = rows(cli.run.path / "metrics.csv")
    assert all(row[name] for name in ("train/loss", "val/accuracy"))
    assert capsys.readouterr().out.count("printed by the model") > 10
    assert read_json(cli.run.path / "metrics.json")["test"]["total"] == 26
    plots = {
        path.stem: Image.open(path).convert("RGB") for path in (cli.run.path / "plots").iterdir()
    }
    assert set(plots) == {"curves", "confusion_matrix", "classes"}
    assert all(min(image.size) > 100 and np.asarray(image).std() > 5 for image in plots.values())
    (cli.run.path / "metrics.json").unlink()
    assert fit(*flags, "--trainer.max_epochs=2").trainer.current_epoch == 2


class Broken(ImageClassifier):
    """Has a bug in its constructor and another in what loads its weights."""

    def __init__(self, *args: Any, broken: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if broken:
            len(3)  # type: ignore[arg-type]

    def load_state_dict(self, *args, **kwargs):
        raise KeyError("a bug")


def test_a_bug_of_a_subclass_is_not_blamed_on_the_checkpoint(tmp_path):
    run = trainer()
    run.validate(classifier(Broken), datamodule=Memory(), verbose=False)
    run.save_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(KeyError, match="a bug"):
        ImageClassifier.load_from_checkpoint(tmp_path / "own.ckpt")
    with pytest.raises(TypeError, match="has no len"):
        ImageClassifier.load_from_checkpoint(tmp_path / "own.ckpt", broken=True)
