"""Calibration, compared with torchmetrics, a plain loop and a search over temperatures."""

import pytest
import torch
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_calibration_error

from project.analysis.calibration import fit_temperature, reliability, reliability_figure


def overconfident(count=2_000, classes=5, scale=3.0):
    """Logits that are right as often as their softmax says, and then scaled."""
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return scale * logits, labels


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_the_expected_calibration_error_is_that_of_torchmetrics(bins):
    logits, labels = overconfident()
    expected = multiclass_calibration_error(logits.softmax(1), labels, num_classes=5, n_bins=bins)
    assert reliability(logits.softmax(1), labels, bins).ece == pytest.approx(float(expected), abs=1e-5)


def test_each_bin_has_the_mean_of_its_images():
    logits, labels = overconfident(count=300)
    found = reliability(logits.double().softmax(1), labels, bins=4)
    probabilities = logits.double().softmax(1)
    for position in range(4):
        own = [
            (row.max(), int(row.argmax() == label))
            for row, label in zip(probabilities, labels, strict=True)
            if position / 4 < row.max() <= (position + 1) / 4
        ]
        assert found.counts[position] == len(own)
        if own:
            assert float(found.confidence[position]) == pytest.approx(sum(float(c) for c, _ in own) / len(own))
            assert float(found.accuracy[position]) == pytest.approx(sum(hit for _, hit in own) / len(own))


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_the_temperature_is_that_of_the_least_cross_entropy(scale):
    logits, labels = overconfident(scale=scale)
    tried = torch.linspace(0.2, 5, 2_000)
    losses = torch.stack([F.cross_entropy(logits / temperature, labels) for temperature in tried])
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(float(tried[losses.argmin()]), abs=0.01)
    assert found == pytest.approx(scale, rel=0.1)  # it undoes what made the model too sure
    before, after = (reliability((logits / by).softmax(1), labels).ece for by in (1, found))
    assert after <= before + 0.01


def test_images_that_are_all_right_get_the_least_temperature():
    logits = torch.eye(3)
    assert fit_temperature(logits, torch.arange(3)) == pytest.approx(1 / 20)


def test_the_diagram_shows_the_accuracy_of_each_bin():
    logits, labels = overconfident()
    found = reliability(logits.softmax(1), labels, bins=10)
    figure = reliability_figure(found)
    figure.draw_without_rendering()
    tops = [float(bar.get_extents().height) for bar in figure.axes[0].patches]
    assert tops == pytest.approx([max(tops) * float(share / found.accuracy.max()) for share in found.accuracy])
    assert f"{found.ece:.2%}" in figure.axes[0].get_title()
