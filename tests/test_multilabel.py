"""Several labels an image, the whole way: metrics, evaluation on several devices, resuming, report, prediction, export."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.metrics import average_precision_score, f1_score

from project.analysis.data import open_data
from project.analysis.exported import metadata, trace
from project.analysis.prediction import predict
from project.engine.errors import UserError
from project.engine.loading.files import prepare
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.model import ImageClassifier
from project.predict import parse as parse_predict
from project.predict import predict as label_files
from project.report import parse as parse_report
from project.report import report
from tests.conftest import (
    QUIET,
    TINY_DATA,
    TINY_TRAINER,
    as_in_a_terminal,
    draw_image,
    evaluate,
    fit,
    make_folder,
    write_attributes,
)
from tests.small import require_same_end, rows, small, stop_at
from tests.stress import outcome

ROOT = Path(__file__).parents[1]
PAIRS = ["--data=examples.multilabel.FlowerPairs", *TINY_DATA]
MULTILABEL = ["--model=examples.multilabel.MultilabelClassifier", "--monitor=val/mAP"]
ATTRIBUTES = ["--model=examples.attributes.AttributeClassifier", "--monitor=val/f1"]
QUICK = ["--trainer.max_steps=2", "--model.arch=resnet9_slim"]


@pytest.fixture(scope="module")
def multilabel(tmp_path_factory) -> Path:
    """The folder of a finished run of the multi-label classifier, with all its plots."""
    root: Path = tmp_path_factory.mktemp("multilabel")
    options = [*PAIRS, *MULTILABEL, *TINY_TRAINER, *QUIET, QUICK[1]]
    fit(*options, f"--trainer.default_root_dir={root}", "--name=run", drawn=True)
    return root / "run"


def attributes_data(folder):
    """Makes images with two attributes; the options that name them."""
    make_folder(folder / "images", dict.fromkeys("abc", 32))
    write_attributes(folder / "attributes.csv")
    size = ["--data.image_size=32", "--data.batch_size=16", "--data.num_workers=0"]
    return ["--data=examples.attributes.AttributesCSV", f"--data.file={folder}/attributes.csv", *size]


@pytest.fixture(scope="module")
def attributes(tmp_path_factory) -> Path:
    """The folder of a finished run of the classifier of attributes."""
    root: Path = tmp_path_factory.mktemp("run") / "attributes"  # the split depends on the folder's name
    root.mkdir()
    options = [*attributes_data(root), *ATTRIBUTES, *TINY_TRAINER, *QUIET, QUICK[1]]
    fit(*options, f"--trainer.default_root_dir={root}", "--name=run")
    return root / "run"


def test_each_attribute_has_one_value_and_its_probabilities(attributes):
    model, _ = opened(attributes)
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    assert model.class_names == ["number=even", "number=odd", "species=a", "species=b", "species=c"]
    shares, predicted = model.probabilities(logits).numpy(), model.test_metrics.predicted(logits).numpy()
    for part in (slice(2), slice(2, 5)):
        np.testing.assert_allclose(shares[:, part], softmax(logits[:, part].numpy(), 1), rtol=1e-5)
        assert predicted[:, part].sum(1).tolist() == [1] * 20
        assert (predicted[:, part].argmax(1) == shares[:, part].argmax(1)).all()
    report_of = report(parse_report([str(attributes), f"--output={attributes.parent / 'page.html'}"])).read_text()
    assert "No images are shown" not in report_of
    assert model.thresholds is None


def opened(run):
    """The model of a run, and its data."""
    best = run / "checkpoints" / "best.ckpt"
    data = open_data(read_checkpoint(best)[ABOUT])
    data.setup("test")
    return ImageClassifier.load_from_checkpoint(best).eval(), data


def test_a_report_of_a_multi_label_run_has_its_own_metric_and_its_classes_and_mistakes(multilabel, tmp_path):
    page = report(parse_report([str(multilabel), f"--output={tmp_path / 'page.html'}"])).read_text()
    test = json.loads((multilabel / "metrics.json").read_text())["test"]
    assert f"<b>{test['mAP']:.4f}</b><span>mAP, test" in page
    assert "An image may have several classes; it is correct where all of them are." in page
    assert "Confusion matrix</h2>" not in page
    assert 'alt="Rates of each class"' in page
    assert page.count('alt="Grad-CAM"') > 0
    model, data = opened(multilabel)
    split = data.splits["test"]
    with torch.no_grad():
        shares = model(torch.stack([split.image(at) for at in range(len(split))])).sigmoid()
    thresholds = read_checkpoint(multilabel / "checkpoints" / "best.ckpt")[ABOUT]["thresholds"]
    assert list(thresholds) == model.class_names
    for at, name in enumerate(model.class_names):
        precision = average_precision_score(split.labels[:, at], shares[:, at])
        f1 = f1_score(split.labels[:, at], shares[:, at] > thresholds[name], zero_division=0)
        assert f"<td>{f1:.4f}</td><td>{precision:.4f}</td><td>{thresholds[name]:.4f}</td>" in page


def test_predict_names_the_classes_above_their_thresholds_and_has_a_column_for_each(multilabel, tmp_path):
    draw_image(0.5, seed=0, size=(32, 32)).save(tmp_path / "photo.png")
    best, output = str(multilabel / "checkpoints" / "best.ckpt"), tmp_path / "found.csv"
    options = [f"--output={output}", "--trainer.accelerator=cpu", "--trainer.devices=1", "--num_workers=0"]
    with as_in_a_terminal():
        label_files(parse_predict([best, str(tmp_path / "photo.png"), *options]))
    (row,) = rows(output)
    model, _ = opened(multilabel)
    with torch.no_grad():
        shares = model(prepare(tmp_path / "photo.png", model.preprocessing)[None]).sigmoid()[0].tolist()
    expected = dict(zip(model.class_names, shares, strict=True))
    found = {name.partition("_")[2]: float(value) for name, value in row.items() if name.startswith("probability_")}
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-4)
    assert model.thresholds is not None
    assert row["labels"].split() == [name for name, p in expected.items() if p > model.thresholds[name]]
    assert metadata(model)["thresholds"] == json.dumps(model.thresholds)


@pytest.mark.slow  # starts two processes, each of which imports everything
@pytest.mark.parametrize("example", ["multilabel", "attributes"])
def test_multi_label_evaluation_on_two_devices_says_what_the_run_said(example, request, tmp_path):
    run = request.getfixturevalue(example)
    checkpoint, output = str(run / "checkpoints" / "best.ckpt"), tmp_path / "test.json"
    given = [checkpoint, f"--import=examples.{example}", f"--output={output}"]
    command = [sys.executable, "-m", "project.evaluate", *given, "--trainer.accelerator=cpu", "--trainer.devices=2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected, found = json.loads((run / "metrics.json").read_text())["test"], json.loads(output.read_text())
    assert found["correct"] == expected["correct"]
    rates = {name: value for name, value in expected.items() if isinstance(value, float)}
    assert {name: found[name] for name in rates} == pytest.approx(rates)
    assert len(rates) > 3


@pytest.mark.parametrize("example", ["multilabel", "attributes"])
def test_a_multi_label_training_that_is_stopped_resumes_exactly(example, workplace):
    data, model = ([*PAIRS, "--data.cutout=8"], MULTILABEL)
    if example == "attributes":
        data, model = [*attributes_data(workplace), "--data.cutout=8"], ATTRIBUTES
    small(*model, "--name=whole", data=data)
    expected = outcome(Path("runs/whole"))
    Path("runs/whole").rename(workplace / "whole")
    stop_at(3, *model, data=data)
    small(*model, data=data)
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


def test_predictions_of_each_image_name_all_its_classes(multilabel, tmp_path):
    best = str(multilabel / "checkpoints" / "best.ckpt")
    evaluate(best, f"--output={tmp_path}/a.json", f"--output_predictions={tmp_path}/a.csv")
    found, metrics = rows(tmp_path / "a.csv"), json.loads((tmp_path / "a.json").read_text())
    assert [row["correct"] for row in found] == [json.dumps(row["label"] == row["true_label"]) for row in found]
    assert sum(row["correct"] == "true" for row in found) == metrics["correct"]
    assert {len(row["true_label"].split()) for row in found} == {1, 2}


def test_labels_of_one_class_are_refused_by_a_model_of_several(workplace):
    with pytest.raises(UserError, match=r"the labels are of one class an image; see examples/multilabel_csv\.py"):
        fit(*MULTILABEL, *TINY_DATA, *TINY_TRAINER, *QUIET, *QUICK, "--name=run")
    assert not Path("runs/run").exists()
