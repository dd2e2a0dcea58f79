"""Plots show the numbers that they are given, whatever the names; calibration is torchmetrics'."""

import io
import os
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter
from torchmetrics.functional.classification import multiclass_calibration_error

from project.analysis.calibration import (
    abstention_figure,
    coverage_thresholds,
    fit_temperature,
    reliability,
    reliability_figure,
)
from project.analysis.plots import (
    class_figure,
    confusion_figure,
    curves_figure,
    image_grid,
    ranking_figures,
    read_curves,
    read_steps_per_epoch,
)
from tests.conftest import cases

HARD_NAMES = [
    "μαργαρίτα",
    "ромашка",
    "100%",
    "a_b^c",
    "$x_{$",
    "\\frac",
    "x" * 255,
    "\udcff\udcfe",
    "a\tb\x1b[2J",
]
CURVES = {
    name: {step: 1 - step / 30 for step in (3, 1, 2)}
    for name in ("train/loss", "val/accuracy", "learning_rate")
}


def require_drawn(figure):
    """Draws into a PNG file; any warning is an error here."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    image = np.asarray(Image.open(file).convert("L"))
    assert min(image.shape) > 50
    assert image.std() > 1


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_a_confusion_matrix_shows_true_rows_and_their_counts():
    confusion = torch.tensor([[6, 2, 0], [0, 0, 0], [1, 0, 3]])
    (axes,) = confusion_figure(confusion, ["a", "b", "c"]).axes
    assert axes.get_ylabel() == "true"
    assert ticks(axes.yaxis) == ticks(axes.xaxis) == ["a", "b", "c"]
    assert np.allclose(
        np.asarray(axes.images[0].get_array()),
        np.array([[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]]),
    )
    texts = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert texts == {((0, 0), "6"), ((1, 0), "2"), ((0, 2), "1"), ((2, 2), "3")}


@cases(
    "curves panels",
    ({}, []),
    ({"train/loss": {10: 1.5}}, ["train/loss"]),
    ({"train/loss": {10: 1.5, 20: float("nan"), 30: float("inf")}, "val/loss": {30: 0.0}}, []),
    (CURVES | {"of no interest": {1: 1.0}}, [*CURVES]),
)
def test_curves_are_drawn_from_whatever_was_logged_at_whole_steps(curves, panels):
    require_drawn(figure := curves_figure(curves))
    drawn = [[np.asarray(line.get_xydata()) for line in axes.lines] for axes in figure.axes]
    drawn = [
        [points.tolist() for points in found if len(points) and points[:, 1].any()]
        for found in drawn
    ]
    for name in panels:
        expected = [list(point) for point in sorted(curves[name].items())]
        assert expected in [points for found in drawn for points in found]
    assert all(drawn) or not curves
    for axes in (axes for axes, found in zip(figure.axes, drawn, strict=True) if found):
        assert (axes.get_xticks() == axes.get_xticks().round()).all()


@pytest.mark.filterwarnings(
    "ignore:.*Glyph .* missing from", "ignore:Matplotlib currently does not support"
)
@cases("names", [*HARD_NAMES, "\N{BENGALI LETTER KA}" * 85], list("abcd") * 10)
def test_any_names_of_classes_can_be_drawn(names):
    require_drawn(confusion_figure(torch.randint(0, 9, (len(names), len(names))), names))
    require_drawn(class_figure([{"precision": 0.3, "recall": 0.9, "f1": 0.45}] * len(names), names))
    require_drawn(
        image_grid(
            [torch.zeros(3, 4, 4, dtype=torch.uint8)] * 9, [f"{name} 99%" for name in names[:9]]
        )
    )


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
    require_drawn(figure := reliability_figure(found))
    bars: Any = figure.axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx(found.accuracy.tolist())


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.0])
def test_the_temperature_is_that_of_the_least_cross_entropy(scale):
    logits, labels = overconfident(scale=scale)
    tried = torch.linspace(0.2, 5, 2_000)
    losses = torch.stack([cross_entropy(logits / temperature, labels) for temperature in tried])
    temperature = fit_temperature(logits, lambda x, t: ((x / t).softmax(1), labels))
    assert temperature == pytest.approx(float(tried[losses.argmin()]), abs=0.01)
    assert temperature == pytest.approx(scale, rel=0.1)  # it undoes what made the model too sure


@cases("coverage", 0.5, 0.9, 0.99)
def test_sets_have_the_class_of_at_least_their_share_of_new_images(coverage):
    """In the mean over draws: the rank of a new image among 39 is uniform, without any ties."""
    generator = torch.Generator().manual_seed(0)
    true = torch.rand(2_000, 40, generator=generator, dtype=torch.float64)
    least = [coverage_thresholds(row[1:])[round(100 * coverage) - 1] for row in true]
    covered = (true[:, 0] >= torch.tensor(least, dtype=torch.float64)).double().mean().item()
    assert coverage - 0.02 < covered < coverage + 1 / 40 + 0.02
    assert (min(least) == 0) == (coverage > 39 / 40)  # too few images to leave any class out


def test_the_accuracy_of_the_images_left_over_is_that_of_the_most_confident():
    logits, labels = overconfident(count=200)
    shares = logits.softmax(1).double().numpy()
    confidence, correct = shares.max(1), shares.argmax(1) == labels.numpy()
    line, *points = abstention_figure(torch.tensor(confidence), torch.tensor(correct)).axes[0].lines
    for share, accuracy in (np.asarray(point.get_xydata())[0] for point in points):
        assert accuracy == pytest.approx(
            correct[confidence >= np.sort(confidence)[-round(200 * share)]].mean()
        )
    assert len(points) == 4
    assert np.asarray(line.get_ydata())[-1] == pytest.approx(correct.mean())
    assert abstention_figure(torch.rand(200), torch.ones(200)).axes[0].get_ylim()[1] == 1


def test_curves_over_thresholds_have_the_names_of_the_field():
    assert [
        figure.axes[0].get_title()
        for figure in ranking_figures(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]), 0.6)
    ] == ["ROC", "precision and recall"]


@cases("clocks", (1000, 2000), (2000, 1000))
def test_curves_are_in_the_order_of_steps_whatever_the_clock_showed_when_a_run_resumed(
    tmp_path, clocks
):
    """TensorBoard reads files by the time in their names; of a step twice, the newest counts."""
    for clock, points in zip(clocks, ({3: 0.9, 7: 0.8}, {11: 0.5, 15: 0.25}), strict=True):
        writer = SummaryWriter(str(tmp_path), filename_suffix=".new")
        for step, value in points.items():
            writer.add_scalar("val/loss", value, step, walltime=clock + step)
        writer.add_scalar("val/accuracy", clock, 1, walltime=clock)
        writer.close()
        (written,) = tmp_path.glob("*.new")
        written.rename(tmp_path / f"events.out.tfevents.{clock}.host.1.0")
    curves = read_curves(tmp_path)
    assert list(curves["val/loss"]) == [3, 7, 11, 15]
    assert curves["val/accuracy"] == {1: 2000}


@cases(
    "text steps",
    ("epoch,step\n1,4\n2,9\n", 4.5),
    ("step,epoch\n4,1\n9", 0.0),  # a last line that is cut off
    ("epoch,step\n1", 0.0),
    ("", 0.0),
    (None, 0.0),  # a named pipe, which nobody writes to
)
def test_the_steps_of_an_epoch_are_read_from_a_whole_file_alone(tmp_path, monkeypatch, text, steps):
    if text is None:
        os.mkfifo(tmp_path / "metrics.csv")
        monkeypatch.setattr("builtins.open", None)  # which would wait for ever
    else:
        (tmp_path / "metrics.csv").write_text(text)
    assert read_steps_per_epoch(tmp_path) == steps
