"""Several labels an image, the whole way: metrics, evaluation on several devices, resuming, report, prediction, export."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.metrics import average_precision_score, f1_score
from torch.nn import functional as F

from project.analysis.calibration import fit_temperature
from project.analysis.evaluation import evaluate_split
from project.engine.commands.export import metadata, trace
from project.engine.errors import UserError
from project.engine.loading.files import prepare
from project.model.test_time import ProbabilityNetwork
from tests.conftest import (
    MULTILABEL,
    PAIRS,
    attributes_options,
    draw_image,
    evaluate,
    label,
    opened,
    report_of,
)
from tests.engine.toy import outcome
from tests.small import require_same_end, rows, small, stop_at


def test_each_attribute_has_one_value_and_its_probabilities(attributes, tmp_path):
    model, data = opened(attributes)
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    assert model.class_names == ["number=even", "number=odd", "species=a", "species=b", "species=c"]
    shares = model.probabilities(logits)
    predicted, found = model.predicted(shares).numpy(), shares.numpy()
    for part in (slice(2), slice(2, 5)):
        np.testing.assert_allclose(found[:, part], softmax(logits[:, part].numpy(), 1), rtol=1e-5)
        assert predicted[:, part].sum(1).tolist() == [1] * 20
        assert (predicted[:, part].argmax(1) == found[:, part].argmax(1)).all()
    assert (
        "No images are shown"
        not in report_of(attributes, f"--output={tmp_path / 'page.html'}").read_text()
    )
    assert model.thresholds is None
    named = {"number": {"even": 0, "odd": 1}, "species": {"a": 2, "b": 3, "c": 4}}
    assert json.loads(metadata(model)["attributes"]) == named
    test = evaluate_split(
        model, data
    )  # whose calibration is that of the choices among an attribute's values
    logits, chosen, labels = test.decisions
    assert len(labels) == int((test.labels == 1).sum())
    torch.testing.assert_close(logits.softmax(1), chosen)
    expected = model.loss(test.logits[test.known] / 2, test.labels[test.known]).sum()
    torch.testing.assert_close(F.cross_entropy(logits / 2, labels, reduction="sum"), expected)
    best = min(
        torch.logspace(-1.3, 1.3, 2_000), key=lambda tried: F.cross_entropy(logits / tried, labels)
    )
    assert fit_temperature(logits, labels) == pytest.approx(float(best), rel=0.02)


def test_a_report_of_a_multi_label_run_has_its_own_metric_and_its_classes_and_mistakes(
    multilabel, tmp_path
):
    page = report_of(multilabel, f"--output={tmp_path / 'page.html'}").read_text()
    test = json.loads((multilabel / "metrics.json").read_text())["test"]
    assert f"<b>{test['mAP']:.4f}</b><span>mAP, test" in page
    assert (
        "An image may have several classes; it is correct where all that are known of it are."
        in page
    )
    assert "Confusion matrix</h2>" not in page
    assert 'alt="Rates of each class"' in page
    assert page.count('alt="Grad-CAM"') > 0
    model, data = opened(multilabel)
    split = data.splits["test"]
    with torch.no_grad():
        shares = model(torch.stack([split.image(at) for at in range(len(split))])).sigmoid()
    assert model.thresholds is not None
    assert list(model.thresholds) == model.class_names
    for labels, own, threshold in zip(
        split.labels.T, shares.T, model.thresholds.values(), strict=True
    ):
        precision, f1 = (
            average_precision_score(labels, own),
            f1_score(labels, own > threshold, zero_division=0),
        )
        assert f"<td>{f1:.4f}</td><td>{precision:.4f}</td><td>{threshold:.4f}</td>" in page


def test_predictions_and_exports_are_sigmoids_and_name_the_classes_above_their_thresholds(
    multilabel, tmp_path
):
    photo, output = tmp_path / "photo.png", tmp_path / "found.csv"
    draw_image(0.5, seed=0, size=(32, 32)).save(photo)
    label(multilabel / "checkpoints" / "best.ckpt", photo, f"--output={output}")
    (row,), (model, _) = rows(output), opened(multilabel)
    image = prepare(photo, model.preprocessing)[None]
    with torch.no_grad():
        shares = expit(model(image)[0].double().numpy())
        program = trace(ProbabilityNetwork(model), model.preprocessing)
        np.testing.assert_allclose(program.module()(image)[0], shares, rtol=1e-4)
    expected = dict(zip(model.class_names, shares.tolist(), strict=True))
    found = {
        name.partition("_")[2]: float(value)
        for name, value in row.items()
        if name.startswith("probability_")
    }
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-4)
    assert model.thresholds is not None
    assert row["labels"].split() == [
        name for name, p in expected.items() if p > model.thresholds[name]
    ]
    assert metadata(model)["thresholds"] == json.dumps(model.thresholds)
    (in_python,) = model.predict_files([photo])
    assert in_python.probabilities == pytest.approx(expected, rel=1e-4)
    assert in_python.probability == max(in_python.probabilities.values())


@pytest.mark.slow  # starts two processes, each of which imports everything
@pytest.mark.parametrize("example", ["multilabel", "attributes"])
def test_multi_label_evaluation_on_two_devices_says_what_the_run_said(example, request, tmp_path):
    run = request.getfixturevalue(example)
    checkpoint, output = str(run / "checkpoints" / "best.ckpt"), tmp_path / "test.json"
    given = [checkpoint, f"--import=examples.{example}", f"--output={output}"]
    command = [
        sys.executable,
        "-m",
        "project.evaluate",
        *given,
        "--trainer.accelerator=cpu",
        "--trainer.devices=2",
    ]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected, found = (
        json.loads((run / "metrics.json").read_text())["test"],
        json.loads(output.read_text()),
    )
    assert found["correct"] == expected["correct"]
    rates = {name: value for name, value in expected.items() if isinstance(value, float)}
    assert {name: found[name] for name in rates} == pytest.approx(rates)
    assert len(rates) > 3


@pytest.mark.parametrize("example", ["multilabel", "attributes"])
def test_a_multi_label_training_that_is_stopped_resumes_exactly(example, workplace):
    options = attributes_options(workplace) if example == "attributes" else [*PAIRS, *MULTILABEL]
    options = [*options, "--data.cutout=8"]
    small("--trainer.default_root_dir=whole", data=options)
    stop_at(3, data=options)
    small(data=options)
    require_same_end(Path("runs/run"), outcome(Path("whole/run")))


def test_predictions_of_each_image_name_all_its_classes(multilabel, tmp_path):
    best = str(multilabel / "checkpoints" / "best.ckpt")
    evaluate(best, f"--output={tmp_path}/a.json", f"--output_predictions={tmp_path}/a.csv")
    found, metrics = rows(tmp_path / "a.csv"), json.loads((tmp_path / "a.json").read_text())
    assert [row["correct"] for row in found] == [
        json.dumps(row["label"] == row["true_label"]) for row in found
    ]
    assert sum(row["correct"] == "true" for row in found) == metrics["correct"]
    assert {len(row["true_label"].split()) for row in found} == {1, 2}


def test_labels_of_one_class_and_balancing_are_refused_by_a_model_of_several(workplace):
    with pytest.raises(UserError, match=r"MultilabelClassifier gives each image any number of"):
        small(*MULTILABEL)
    with pytest.raises(UserError, match="needs images of one class each"):
        small(*MULTILABEL, "--model.loss.class_weights=balanced", data=PAIRS)
