"""Plots show the numbers that they are given, whatever the names."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from project.analysis.plots import balance_figure, class_figure, confusion_figure, curves_figure, image_grid
from tests.conftest import cases

RATES = ["precision", "recall", "f1"]
HARD_NAMES = ["μαργαρίτα", "ромашка", "100%", "a_b^c", "$x_{$", "\\frac", "x" * 255, "\udcff\udcfe", "a\tb\x1b[2J"]
RNG = np.random.default_rng(0)


def rows(count):
    return [dict(zip(RATES, row, strict=True)) for row in RNG.random((count, 3)).tolist()]


def require_drawn(figure):
    """Draws into a PNG file; any warning is an error here."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    image = np.asarray(Image.open(file).convert("L"))
    assert min(image.shape) > 50
    assert image.std() > 1


def shown(axes):
    return np.asarray(axes.images[0].get_array())


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def lines(figure):
    drawn = [[np.asarray(line.get_xydata()) for line in axes.lines] for axes in figure.axes]
    return [[points.tolist() for points in found if len(points) and points[:, 1].any()] for found in drawn]


def test_a_confusion_matrix_shows_true_rows_and_their_counts():
    confusion = torch.tensor([[6, 2, 0], [0, 0, 0], [1, 0, 3]])
    (axes,) = confusion_figure(confusion, ["a", "b", "c"]).axes
    assert axes.get_ylabel() == "true"
    assert ticks(axes.yaxis) == ticks(axes.xaxis) == ["a", "b", "c"]
    assert np.allclose(shown(axes), np.array([[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]]))
    counts = {(text.get_position(), text.get_text()) for text in axes.texts}
    assert counts == {((0, 0), "6"), ((1, 0), "2"), ((0, 2), "1"), ((2, 2), "3")}


@pytest.mark.parametrize(("count", "titled"), [(1, True), (9, False)])
def test_a_grid_shows_every_image_as_it_is(count, titled):
    images = torch.randint(0, 256, (count, 3, 12, 10), dtype=torch.uint8)
    titles = [f"image {number}" for number in range(count)] if titled else []
    figure = image_grid(list(images), titles)
    require_drawn(figure)
    for axes, image in zip(figure.axes, images, strict=True):
        assert (shown(axes) == image.permute(1, 2, 0).numpy()).all()
    assert [axes.get_title() for axes in figure.axes] == (titles or [""] * count)


CURVES = {name: {step: 1 - step / 30 for step in (3, 1, 2)} for name in ("train/loss", "val/accuracy", "learning_rate")}


@cases(
    "curves panels",
    ({}, []),
    ({"train/loss": {10: 1.5}}, ["train/loss"]),
    ({"train/loss": {10: 1.5, 20: float("nan"), 30: float("inf")}, "val/loss": {30: 0.0}}, []),
    (CURVES | {"of no interest": {1: 1.0}}, [*CURVES]),
)
def test_curves_are_drawn_from_whatever_was_logged_at_whole_steps(curves, panels):
    figure = curves_figure(curves)
    require_drawn(figure)
    drawn = lines(figure)
    for name in panels:
        expected = [list(point) for point in sorted(curves[name].items())]
        assert expected in [points for found in drawn for points in found]
    for axes in (axes for axes, found in zip(figure.axes, drawn, strict=True) if found):
        assert (axes.get_xticks() == axes.get_xticks().round()).all()
    if "train/loss" in curves:
        legend: Any = figure.axes[0].get_legend()
        assert legend.get_texts()[0].get_text() == "train (training loss)"


def test_bars_of_each_class_have_its_rates_the_first_class_on_top():
    names, found = ["a", "b_$x$"], rows(2)
    figure = class_figure(found, names)
    require_drawn(figure)
    (axes,) = figure.axes
    assert ticks(axes.yaxis) == names
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    for key, bars in zip(RATES, axes.containers, strict=True):
        assert [bar.get_width() for bar in bars] == [row[key] for row in found]
    stacked = balance_figure({"train": [8, 3], "val": [2, 1]}, names)
    require_drawn(stacked)
    places = [(bar.get_x(), bar.get_width()) for group in stacked.axes[0].containers for bar in group]
    assert places == [(0, 8), (0, 3), (8, 2), (3, 1)]


@pytest.mark.filterwarnings("ignore:.*Glyph .* missing from", "ignore:Matplotlib currently does not support")
@cases("names", [*HARD_NAMES, "\N{BENGALI LETTER KA}" * 85], list("abcd") * 10)
def test_any_names_of_classes_can_be_drawn(names):
    require_drawn(confusion_figure(torch.randint(0, 9, (len(names), len(names))), names))
    require_drawn(class_figure(rows(len(names)), names))
    require_drawn(image_grid([torch.zeros(3, 4, 4, dtype=torch.uint8)] * 9, [f"{name} 99%" for name in names[:9]]))
