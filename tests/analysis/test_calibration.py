"""Calibration, compared with torchmetrics and a search over temperatures."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_calibration_error

from project.analysis.calibration import abstention_figure, fit_temperature, reliability, reliability_figure


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


def test_the_accuracy_of_the_images_left_over_is_that_of_the_most_confident():
    logits, labels = overconfident(count=200)
    shares = logits.softmax(1).double().numpy()
    confidence, correct = shares.max(1), shares.argmax(1) == labels.numpy()
    line, *points = abstention_figure(torch.tensor(confidence), torch.tensor(correct)).axes[0].lines
    for share, accuracy in (np.asarray(point.get_xydata())[0] for point in points):
        least = np.sort(confidence)[::-1][round(200 * share) - 1]
        assert accuracy == pytest.approx(correct[confidence >= least].mean())
    assert [point.get_label() for point in points] == [f"confidence from {least}" for least in (0.5, 0.7, 0.9, 0.95)]
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(correct.mean())
