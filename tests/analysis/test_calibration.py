"""Calibration, compared with torchmetrics and a search over temperatures."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_calibration_error

from project.analysis.calibration import conformal_threshold, fit_temperature, reliability, reliability_figure
from tests.conftest import as_in_a_terminal, draw_image


def overconfident(count=2_000, classes=5, scale=3.0):
    """Logits that are right as often as their softmax says, and then scaled."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return scale * logits, labels


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_expected_calibration_error_is_that_of_torchmetrics_and_is_drawn(bins):
    logits, labels = overconfident()
    found = reliability(logits.softmax(1), labels, bins)
    expected = multiclass_calibration_error(logits.softmax(1), labels, num_classes=5, n_bins=bins)
    assert found.ece == pytest.approx(float(expected), abs=1e-5)
    figure = reliability_figure(found)
    figure.draw_without_rendering()
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx(found.accuracy.tolist())  # type: ignore[attr-defined]  # a Rectangle
    assert f"{found.ece:.2%}" in figure.axes[0].get_title()


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_the_temperature_is_that_of_the_least_cross_entropy(scale):
    logits, labels = overconfident(scale=scale)
    tried = torch.linspace(0.2, 5, 2_000)
    losses = torch.stack([F.cross_entropy(logits / temperature, labels) for temperature in tried])
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(float(tried[losses.argmin()]), abs=0.01)
    assert found == pytest.approx(scale, rel=0.1)  # it undoes what made the model too sure
    assert fit_temperature(torch.eye(3), torch.arange(3)) == pytest.approx(1 / 20)  # where all is right, the least


def test_prediction_sets_hold_the_true_class_as_often_as_was_asked_for():
    logits, labels = overconfident(count=40_000)
    shares, covered = logits.softmax(1), []
    for of_val, of_test in zip(torch.arange(20_000).split(200), torch.arange(20_000, 40_000).split(200), strict=True):
        threshold = conformal_threshold(shares[of_val], labels[of_val], coverage=0.9)
        true = shares[of_val, labels[of_val]]
        assert threshold == np.sort(true)[19]  # the 20th of 200: floor(201 / 10)
        covered.append(float((shares[of_test, labels[of_test]] >= threshold).float().mean()))
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)
    assert conformal_threshold(shares[:9], labels[:9], coverage=0.95) == 0  # too few to leave any class out


def test_the_page_names_the_classes_of_a_photo(tiny_run, workplace, capsys):
    (workplace / "runs").mkdir()
    (workplace / "runs" / "NAME").symlink_to(tiny_run)
    draw_image(0.5, seed=0).save("photo.jpg")
    page = Path(__file__).parents[2] / "docs" / "after_training.md"
    code = next(text for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.S) if "conformal" in text)
    names: dict[str, Any] = {}
    with as_in_a_terminal():
        exec(code, names)
    assert 0 <= names["threshold"] < 1
    assert set(eval(capsys.readouterr().out)) <= set(names["model"].class_names)
