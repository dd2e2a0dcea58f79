"""Matplotlib figures for callbacks, the report and notebooks."""

import csv
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from lightkeeper.exact import note
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor
from torchmetrics.classification import BinaryPrecisionRecallCurve, BinaryROC
from torchmetrics.functional.classification import (
    binary_precision,
    binary_recall,
    binary_specificity,
)

from project.analysis.tables import RATES

PANELS = {
    "loss": ["train/loss", "val/loss"],
    "accuracy": ["train/accuracy", "val/accuracy"],
    "learning rate": ["learning_rate"],
    "images per second": ["train/images_per_second"],
}
"""Plots of a run by their titles, and the curves in each."""
# only the training loss has label smoothing
_LOSS_LABELS = {"train/loss": " (training loss)", "val/loss": " (evaluation loss)"}


def tick_label(name: str, length: int = 24) -> str:
    """Shortens a name in its middle to at most ``length`` characters, and escapes control characters."""
    name = repr(name)[1:-1]
    if not _font_characters().issuperset(map(ord, name)):
        _note_missing_font()
    half = (length - 1) // 2
    return name if len(name) <= length else f"{name[:half]}…{name[-half:]}"


@cache
def _font_characters() -> set[int]:
    """Returns the code points that matplotlib's default fonts can draw."""
    fonts = [get_font(findfont(FontProperties(family=[name]))) for name in rcParams["font.family"]]
    return {character for font in fonts for character in font.get_charmap()}


@cache
def _note_missing_font() -> None:
    note(
        "plots show boxes in place of some names: the font lacks their characters; install one that"
        " has them, such as Noto Sans CJK, and add it to font.family in a file matplotlibrc"
    )


def confusion_figure(confusion: ArrayLike, class_names: Sequence[str]) -> Figure:
    """Draws a confusion matrix, rows normalised by true class, with counts in the cells."""
    counts = np.asarray(confusion)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    labels = [tick_label(name) for name in class_names]
    # more than 30 classes share the space, without names
    size = 0.55 * min(max(len(class_names), 4), 30) + 1.8
    figure = Figure(figsize=(size, size), layout="constrained", dpi=110)
    axes = figure.add_subplot(xlabel="predicted", ylabel="true")
    axes.imshow(shares, cmap="viridis", vmin=0, vmax=1)
    if len(class_names) <= 30:
        ticks = range(len(class_names))
        axes.set_xticks(
            ticks, labels, rotation=45, ha="right", rotation_mode="anchor", parse_math=False
        )
        axes.set_yticks(ticks, labels, parse_math=False)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "black" if shares[row, column] > 0.6 else "white"
                # inside the axes, so the layout need not measure it
                axes.text(
                    column, row, str(count), ha="center", va="center", color=colour, in_layout=False
                )
    return figure


def as_rgb(image: Tensor) -> Tensor:
    """Converts an image of any channels to RGB, uint8; stretches the contrast of 16 bits."""
    rgb = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
    if rgb.dtype.itemsize == 2:
        low, high = rgb.float().aminmax()
        rgb = (255 * (rgb.float() - low) / (high - low).clamp(min=1)).byte()
    return rgb


def image_grid(images: Sequence[Tensor], titles: Sequence[str] = (), columns: int = 6) -> Figure:
    """Draws images, (channels, height, width) each, in rows, with or without titles."""
    columns = max(1, min(columns, len(images)))
    rows = max(1, -(-len(images) // columns))
    lines = [[tick_label(line, length=30) for line in title.split("\n")] for title in titles]
    # 150 points of letters are as wide as an image
    letters = min(9, 150 / max([1, *(len(line) for title in lines for line in title)]))
    figure = Figure(
        figsize=(1.35 * columns, rows * (1.25 + 0.16 * max(map(len, lines), default=0))),
        layout="constrained",
        dpi=110,
    )
    for position, image in enumerate(images):
        axes = figure.add_subplot(rows, columns, position + 1)
        axes.imshow(as_rgb(image.cpu()).permute(1, 2, 0).numpy())
        axes.axis("off")
        if titles:
            axes.set_title("\n".join(lines[position]), fontsize=letters, pad=2, parse_math=False)
    return figure


def read_curves(run: str | Path) -> dict[str, dict[int, float]]:
    """Reads a run's curves from TensorBoard's files: by name, the value at each step, in order.

    TensorBoard reads files in the order of the times in their names, which a clock may set back.
    """
    # here, as it takes a while to import
    from tensorboard.backend.event_processing import event_accumulator

    accumulator: Any = event_accumulator.EventAccumulator
    events = accumulator(str(run), size_guidance={"scalars": 0}).Reload()  # 0: keep every point
    return {
        name: {
            event.step: event.value
            for event in sorted(events.Scalars(name), key=attrgetter("step", "wall_time"))
        }
        for name in events.Tags()["scalars"]
    }


def draw_curve(
    axes: Axes, points: Mapping[int, float], colour: str, label: str, steps_per_epoch: float = 0.0
) -> None:
    """Draws a curve over epochs, or over steps if ``steps_per_epoch`` is 0, as unknown."""
    steps = sorted(points)
    marker = "o" if len(steps) < 30 else ""  # a line through a single point shows nothing
    values = [points[step] for step in steps]
    x = [(step + 1) / steps_per_epoch for step in steps] if steps_per_epoch else steps
    axes.plot(x, values, marker=marker, markersize=4, color=colour, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def read_steps_per_epoch(run: Path) -> float:
    """Reads the steps of an epoch from a run's ``metrics.csv``; 0 if that does not say it."""
    path = run / "metrics.csv"
    if not path.is_file():  # reading a named pipe would wait for ever
        return 0.0
    with (
        # a line that is cut off has None in a column: TypeError
        suppress(OSError, ValueError, LookupError, ArithmeticError, TypeError, csv.Error),
        open(path) as file,
    ):
        return max(float(row["step"]) / int(row["epoch"]) for row in csv.DictReader(file))
    return 0.0


def logged_panels(curves: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Returns the titles of the plots that have a curve."""
    return [title for title, names in PANELS.items() if any(map(curves.get, names))]


def curves_figure(
    curves: Mapping[str, Mapping[int, float]],
    steps_per_epoch: float = 0.0,
    panels: Sequence[str] = (),
) -> Figure:
    """Draws loss, accuracy, learning rate and speed over epochs, or steps, if logged.

    Args:
        curves: By name, the value at each step.
        steps_per_epoch: The steps of an epoch; 0 if unknown.
        panels: The titles of those to draw; by default those that have a curve, or all.
    """
    panels = panels or logged_panels(curves) or list(PANELS)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.5 * columns, 2.7 * rows), layout="constrained", dpi=110)
    unit = "epoch" if steps_per_epoch else "step"
    for position, title in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, position, title=title, xlabel=unit)
        for name in filter(curves.get, PANELS[title]):
            split, colour = name.split("/")[0], "C1" if name.startswith("val/") else "C0"
            label = f"{split}{_LOSS_LABELS.get(name, '')}"
            draw_curve(axes, curves[name], colour, label, steps_per_epoch)
        if title in ("loss", "accuracy") and axes.lines:
            axes.legend()
        axes.axhline(0, color="black", linewidth=0.8)  # heights compare only from zero
        axes.set_ylim(bottom=0)
        # the first validation losses can be hundreds of times higher and hide all else
        losses = [loss for loss in curves.get("train/loss", {}).values() if 0 < loss < math.inf]
        if title == "loss" and losses:
            axes.set_ylim(top=min(axes.get_ylim()[1], 2 * max(losses)))
        axes.grid(alpha=0.3)
    return figure


def ranking_figures(shares: Tensor, is_positive: Tensor, threshold: float) -> list[Figure]:
    """Draws the ROC and the precision-recall curve of two classes, and a threshold in both.

    Args:
        shares: The probability of the positive class, float (N,).
        is_positive: int64 (N,).
        threshold: The probability from which an image is positive.
    """
    decided = (shares >= threshold).long()
    recall = binary_recall(decided, is_positive)
    points = [
        (1 - binary_specificity(decided, is_positive), recall),
        (recall, binary_precision(decided, is_positive)),
    ]
    figures = []
    for title, metric, point in zip(
        ("ROC", "precision and recall"),
        (BinaryROC(), BinaryPrecisionRecallCurve()),
        points,
        strict=True,
    ):
        figures.append(Figure(figsize=(4.6, 3.6), layout="constrained", dpi=110))
        axes = figures[-1].add_subplot()
        metric.update(shares, is_positive)
        metric.plot(ax=axes)
        axes.set_title(title)
        axes.plot(*point, "o", color="C1", label=f"threshold {threshold:.4g}")
        axes.legend(loc="lower center")
    return figures


def class_figure(per_class: Sequence[Mapping[str, float]], class_names: Sequence[str]) -> Figure:
    """Draws the rates of each class as bars, such as precision, recall and F1."""
    rates = {key: label for key, label in RATES.items() if key in per_class[0]}
    figure = Figure(
        figsize=(7, 0.14 * len(rates) * len(class_names) + 1.1), layout="constrained", dpi=110
    )
    # the first class on top
    axes = figure.add_subplot(axisbelow=True, xlim=(0, 1), ylim=(len(class_names) - 0.5, -0.5))
    axes.set_yticks(
        range(len(class_names)), [tick_label(name) for name in class_names], parse_math=False
    )
    axes.grid(axis="x", alpha=0.3)
    height = 0.75 / len(rates)
    for number, (key, label) in enumerate(rates.items()):
        positions = np.arange(len(class_names)) + height * (number - (len(rates) - 1) / 2)
        axes.barh(positions, [row[key] for row in per_class], height=height, label=label)
    figure.legend(loc="outside upper center", ncols=len(rates), frameon=False)
    return figure
