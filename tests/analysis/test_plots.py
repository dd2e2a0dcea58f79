import io

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure as Drawing
from PIL import Image

from project.analysis.plots import (
    balance_figure,
    class_figure,
    confusion_figure,
    curves_figure,
    filters_figure,
    image_grid,
    runs_figure,
)

RATES = ["precision", "recall", "f1"]


def names(count):
    return [f"class number {position}" for position in range(count)]


def random_confusion(classes):
    return torch.randint(0, 9, (classes, classes), generator=torch.Generator().manual_seed(0))


def make_images(count):
    return list(
        torch.randint(0, 256, (count, 3, 12, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    )


def rows(count):
    numbers = np.random.default_rng(0).random((count, 3))
    return [dict(zip(RATES, row.tolist(), strict=True)) | {"total": 5} for row in numbers]


def rendered(figure: Drawing) -> np.ndarray:
    """The figure's pixels, by way of a PNG file; any warning is an error here."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return np.asarray(Image.open(file).convert("L"))


def require_drawn(figure):
    image = rendered(figure)
    assert min(image.shape) > 50
    assert image.std() > 1


def shown(axes):
    return np.asarray(axes.images[0].get_array())


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize("classes", [2, 12, 40])
def test_a_confusion_matrix_is_drawn(classes):
    require_drawn(confusion_figure(random_confusion(classes), names(classes)))


def test_a_confusion_matrix_shows_true_rows_and_their_counts():
    confusion = torch.tensor([[6, 2, 0], [0, 0, 0], [1, 0, 3]])
    (axes,) = confusion_figure(confusion, ["a", "b", "c"]).axes
    assert axes.get_ylabel() == "true"
    assert ticks(axes.yaxis) == ticks(axes.xaxis) == ["a", "b", "c"]
    assert np.allclose(shown(axes), np.array([[0.75, 0.25, 0], [0, 0, 0], [0.25, 0, 0.75]]))
    assert {(text.get_position(), text.get_text()) for text in axes.texts} == {
        ((0, 0), "6"),
        ((1, 0), "2"),
        ((0, 2), "1"),
        ((2, 2), "3"),
    }


@pytest.mark.parametrize(("count", "titled"), [(1, True), (2, False), (9, True), (40, False)])
def test_a_grid_shows_every_image_as_it_is(count, titled):
    images, titles = make_images(count), names(count) if titled else []
    figure = image_grid(images, titles)
    require_drawn(figure)
    assert len(figure.axes) == count
    for axes, image in zip(figure.axes, images, strict=True):
        assert (shown(axes) == image.permute(1, 2, 0).numpy()).all()
    assert [axes.get_title() for axes in figure.axes] == (titles or [""] * count)


@pytest.mark.parametrize(
    "curves",
    [
        {},
        {"train/loss": {10: 1.5}},
        {"train/loss": {10: 1.5, 20: float("nan"), 30: float("inf")}, "val/loss": {30: 0.0}},
        {
            name: {step: step / 300 for step in range(0, 300, 10)}
            for name in (
                *(f"{split}/{figure}" for split in ("train", "val") for figure in ("loss", "accuracy")),
                *("learning_rate", "train/images_per_second", "of no interest"),
            )
        },
    ],
    ids=["nothing", "one point", "not finite", "all"],
)
def test_curves_are_drawn_from_whatever_was_logged(curves):
    figure = curves_figure(curves)
    require_drawn(figure)
    drawn = [np.asarray(line.get_xydata()) for axes in figure.axes for line in axes.lines]
    for name, points in curves.items():
        if name != "of no interest":
            expected = np.array(sorted(points.items()), dtype=float)
            assert any(np.array_equal(line, expected, equal_nan=True) for line in drawn)


@pytest.mark.parametrize("classes", [2, 40])
def test_bars_of_each_class_have_its_rates(classes):
    figure = class_figure(rows(classes), names(classes))
    require_drawn(figure)
    (axes,) = figure.axes
    assert ticks(axes.yaxis) == names(classes)
    for key, bars in zip(RATES, axes.containers, strict=True):
        assert [bar.get_width() for bar in bars] == pytest.approx([row[key] for row in rows(classes)])
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first class on top


@pytest.mark.parametrize("shape", [(64, 3, 7, 7), (10, 3, 3, 3), (1, 3, 1, 1)])
def test_filters_are_drawn_whatever_their_scale(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for scale in (1e-6, 1, 1e6):
        require_drawn(filters_figure(scale * weight))


def test_a_filter_of_zeros_is_grey_and_signs_are_dark_and_bright():
    weight = torch.zeros(3, 3, 2, 2)
    weight[1] = 5
    weight[2] = -0.1
    mosaic = shown(filters_figure(weight, columns=3).axes[0])
    inside = [mosaic[1:3, start : start + 2] for start in (1, 5, 9)]
    assert [float(tile.mean()) for tile in inside] == [0.5, 1.0, 0.0]


@pytest.mark.parametrize("name", ["Größe", "μαργαρίτα", "ромашка", "100%", "a_b^c", "$5", "$x_{$", "\\frac", "it's"])
def test_any_name_of_a_class_can_be_drawn(name):
    require_drawn(confusion_figure(torch.eye(2, dtype=torch.int64), [name, "other"]))
    require_drawn(class_figure(rows(2), [name, "other"]))
    require_drawn(image_grid(make_images(2), [f"{name} 99%\nis other", f"other 50%\nis {name}"]))


@pytest.mark.filterwarnings("ignore:.*Glyph .* missing from", "ignore:Matplotlib currently does not support")
def test_names_of_any_length_and_script_are_drawn_without_a_word():
    classes = ["x" * 255, "\N{BENGALI LETTER KA}" * 85, "\udcff\udcfe", "a\tb\x1b[2J", "$\\frac{1}$"]
    require_drawn(confusion_figure(random_confusion(5), classes))
    require_drawn(class_figure(rows(5), classes))
    require_drawn(image_grid(make_images(5), [f"{name} 99%\nis {name}" for name in classes]))


def test_runs_are_drawn_together():
    runs = {
        "first": {"train/accuracy": {1: 0.2, 5: 0.4}, "val/accuracy": {5: 0.3}},
        "second": {"val/accuracy": {5: 0.5}},
    }
    figure = runs_figure(runs)
    require_drawn(figure)
    drawn = [
        [np.asarray(line.get_xydata()).tolist() for line in axes.lines if len(np.asarray(line.get_xdata()))]
        for axes in figure.axes
    ]
    assert drawn == [[[[1, 0.2], [5, 0.4]]], [[[5, 0.3]], [[5, 0.5]]]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "second"]


def test_the_images_of_a_class_are_stacked_by_split():
    figure = balance_figure({"train": [8, 3], "val": [2, 1]}, ["a", "b_$x$"])
    require_drawn(figure)
    bars = [(bar.get_x(), bar.get_width()) for group in figure.axes[0].containers for bar in group]
    assert bars == [(0, 8), (0, 3), (8, 2), (3, 1)]


@pytest.mark.parametrize("steps", [[8], [1, 2]])
def test_steps_are_whole_numbers(steps):
    curves = {name: dict.fromkeys(steps, 0.5) for name in ("train/loss", "val/loss", "train/accuracy", "val/accuracy")}
    for figure in (curves_figure(curves), runs_figure({"run": curves})):
        for axes in filter(lambda axes: axes.lines, figure.axes):
            ticks = axes.get_xticks()
            assert len(ticks)
            assert (ticks == ticks.round()).all()
