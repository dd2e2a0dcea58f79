"""Several labels an image, the whole way: report, prediction, export."""

import json

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import prepare
from scipy.special import expit

from examples.multilabel import MultilabelClassifier
from examples.tests.test_hub import require_same_in_timm
from project.model.formats import ProbabilityNetwork, metadata, trace
from tests.conftest import (
    MULTILABEL,
    PAIRS,
    draw_image,
    evaluate,
    label,
    opened,
    read_json,
    report_of,
    rows,
    small,
)


@pytest.mark.slow
def test_a_report_of_a_multi_label_run_has_its_own_metric_and_its_classes(multilabel, tmp_path):
    page = report_of(multilabel, f"--output={tmp_path / 'page.html'}").read_text()
    test = read_json(multilabel / "metrics.json")["test"]
    assert f"<b>{test['mAP']:.4f}</b><span>mAP, test" in page
    assert "Confusion matrix</h2>" not in page
    assert page.count('alt="Grad-CAM"') > 0
    for threshold in test["thresholds"]:
        assert f"<td>{threshold:.4f}</td>" in page


def test_predictions_and_exports_are_sigmoids_and_name_the_classes_above_their_thresholds(
    multilabel, tmp_path, capsys
):
    photo, output = tmp_path / "photo.png", tmp_path / "rows.csv"
    draw_image(0.5, seed=0, size=(32, 32)).save(photo)
    label(multilabel / "checkpoints" / "best.ckpt", photo, f"--output={output}")
    (row,), (model, _) = rows(output), opened(multilabel)
    assert model.thresholds is not None
    image = prepare(photo, model.preprocessing)[None]
    with torch.no_grad():
        shares = expit(model(image)[0].double().numpy())
        network = ProbabilityNetwork(model)
        program = trace(network, model)
        np.testing.assert_allclose(program.module()(image)[0], shares, rtol=1e-4)
    expected = dict(zip(model.class_names, shares.tolist(), strict=True))
    columns = {name: float(row[f"probability_{name}"]) for name in expected}
    assert columns == pytest.approx(expected, rel=1e-4)
    above = [name for name, share in expected.items() if share > model.thresholds[name]]
    assert row["labels"].split() == above
    assert metadata(network, model)["thresholds"] == json.dumps(model.thresholds)
    (in_python,) = model.predict_files([photo])
    assert in_python.probabilities == pytest.approx(expected, rel=1e-4)
    assert "note: --flips" not in capsys.readouterr().err
    label(multilabel / "checkpoints" / "best.ckpt", photo, f"--output={output}2.csv", "--flips")
    assert "note: --flips changes probabilities whose thresholds" in capsys.readouterr().err


def test_predictions_of_each_image_name_all_its_classes(multilabel, tmp_path):
    best = str(multilabel / "checkpoints" / "best.ckpt")
    evaluate(best, f"--output={tmp_path}/a.json", f"--output_predictions={tmp_path}/a.csv")
    table, metrics = rows(tmp_path / "a.csv"), read_json(tmp_path / "a.json")
    correct = [row["label"] == row["true_label"] for row in table]
    assert [row["correct"] == "true" for row in table] == correct
    assert sum(correct) == metrics["correct"]
    assert {len(row["true_label"].split()) for row in table} == {1, 2}


@pytest.mark.parametrize("seed", range(3))
def test_a_temperature_changes_no_prediction(multilabel, tmp_path, seed):
    """The thresholds move with the probabilities; chosen again, they would be other ones."""
    content = torch.load(multilabel / "checkpoints" / "best.ckpt", weights_only=True)
    best = tmp_path / "best.ckpt"
    drawn = torch.rand(
        len(content["about"]["thresholds"]), generator=torch.Generator().manual_seed(seed)
    )
    content["about"]["thresholds"] = dict(
        zip(content["about"]["thresholds"], drawn.tolist(), strict=True)
    )
    torch.save(content, best)
    evaluate(str(best), f"--output_predictions={tmp_path}/a.csv")
    for table in ("b", "c"):  # a second temperature replaces the first
        evaluate(str(best), "--calibrate", f"--output_predictions={tmp_path}/{table}.csv")
        after = rows(tmp_path / f"{table}.csv")
        assert [row["label"] for row in after] == [row["label"] for row in rows(tmp_path / "a.csv")]


def test_balancing_is_refused_by_a_model_of_several_classes(workplace):
    with pytest.raises(UserError, match="need images of one class each"):
        small(*MULTILABEL, "--model.loss.class_weights=balanced", data=PAIRS)


def test_timm_alone_gives_the_checkpoints_probabilities(tmp_path):
    pytest.importorskip("timm", reason="timm is an extra")
    require_same_in_timm(tmp_path, MultilabelClassifier, {"arch": "timm/test_resnet"})
