"""Several labels an image, the whole way: metrics, evaluation on several devices, resuming, report, prediction, export."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from project.analysis.exported import trace
from project.analysis.prediction import predict
from project.engine.errors import UserError
from project.model import ImageClassifier
from project.report import parse as parse_report
from project.report import report
from tests.conftest import QUIET, TINY_DATA, TINY_TRAINER, draw_image, evaluate, fit
from tests.small import require_same_end, small, stop_at
from tests.stress import outcome

ROOT = Path(__file__).parents[1]
PAIRS = ["--data=examples.multilabel.FlowerPairs", *TINY_DATA]
MULTILABEL = ["--model=examples.multilabel.MultilabelClassifier", "--monitor=val/mAP"]
QUICK = ["--trainer.max_steps=2", "--model.arch=resnet9_slim"]


@pytest.fixture(scope="module")
def multilabel(tmp_path_factory) -> Path:
    """The folder of a finished run of the multi-label classifier, with all its plots."""
    root: Path = tmp_path_factory.mktemp("multilabel")
    options = [*PAIRS, *MULTILABEL, *TINY_TRAINER, *QUIET, QUICK[1]]
    fit(*options, f"--trainer.default_root_dir={root}", "--name=run", drawn=True)
    return root / "run"


def test_a_report_of_a_multi_label_run_has_its_own_metric_and_its_classes(multilabel, tmp_path):
    page = report(parse_report([str(multilabel), f"--output={tmp_path / 'page.html'}"])).read_text()
    test = json.loads((multilabel / "metrics.json").read_text())["test"]
    assert f"<b>{test['mAP']:.4f}</b><span>mAP, test" in page
    assert "An image may have several classes; it is correct where all of them are." in page
    assert "Confusion matrix</h2>" not in page


@pytest.mark.slow  # starts two processes, each of which imports everything
def test_multi_label_evaluation_on_two_devices_says_what_the_run_said(multilabel, tmp_path):
    checkpoint, output = str(multilabel / "checkpoints" / "best.ckpt"), tmp_path / "test.json"
    given = [checkpoint, "--import=examples.multilabel", f"--output={output}", "--data.test_size=26"]
    command = [sys.executable, "-m", "project.evaluate", *given, "--trainer.accelerator=cpu", "--trainer.devices=2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected, found = json.loads((multilabel / "metrics.json").read_text())["test"], json.loads(output.read_text())
    assert found["correct"] == expected["correct"]
    assert [found[name] for name in ("mAP", "loss")] == pytest.approx([expected[name] for name in ("mAP", "loss")])


def test_a_multi_label_training_that_is_stopped_resumes_exactly(workplace):
    data = [*PAIRS, "--data.cutout=8"]
    small(*MULTILABEL, "--name=whole", data=data)
    expected = outcome(Path("runs/whole"))
    Path("runs/whole").rename(workplace / "whole")
    stop_at(3, *PAIRS[:1], *MULTILABEL)
    small(*MULTILABEL, data=data)
    require_same_end(Path("runs/run"), expected)


def test_multi_label_predictions_and_exports_are_sigmoids(multilabel, tmp_path):
    model = ImageClassifier.load_from_checkpoint(multilabel / "checkpoints" / "best.ckpt").eval()
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = 1 / (1 + np.exp(-model(images).double().numpy()))
        np.testing.assert_allclose(trace(model).module()(images), expected, rtol=1e-4)
    draw_image(0.5, seed=0, size=(32, 32)).save(tmp_path / "photo.png")
    (found,) = predict(model, [tmp_path / "photo.png"])
    assert found.probability == max(found.probabilities.values())
    assert sum(found.probabilities.values()) != pytest.approx(1)


def test_balancing_needs_one_class_an_image(workplace):
    with pytest.raises(UserError, match="needs images of one class each"):
        small(*MULTILABEL, "--model.loss.class_weights=balanced", data=PAIRS)


def test_predictions_of_each_image_need_one_class_an_image(multilabel, tmp_path):
    with pytest.raises(UserError, match="need images of one class each"):
        evaluate(
            str(multilabel / "checkpoints" / "best.ckpt"),
            f"--output={tmp_path}/a.json",
            f"--output_predictions={tmp_path}/a.csv",
        )


def test_labels_of_one_class_are_refused_by_a_model_of_several(workplace):
    with pytest.raises(UserError, match=r"the labels are of one class an image; see examples/multilabel_csv\.py"):
        fit(*MULTILABEL, *TINY_DATA, *TINY_TRAINER, *QUIET, *QUICK, "--name=run")
    assert not Path("runs/run").exists()
