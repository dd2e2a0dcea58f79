"""The pictures that people look at, drawn with matplotlib; used by callbacks and notebooks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor


def confusion_figure(confusion: Tensor, class_names: Sequence[str]) -> Figure:
    """Draws a confusion matrix, each row as shares of its true class, with the counts in the cells.

    Args:
        confusion: int64 (classes, classes); rows are true classes, columns predicted ones.
        class_names: The classes in the order of their labels.
    """
    counts = confusion.cpu().numpy()
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = max(4.0, 0.55 * len(class_names) + 1.8)
    figure = Figure(figsize=(size, size), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    if len(class_names) <= 30:
        axes.set_xticks(range(len(class_names)), class_names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(class_names)), class_names)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                axes.text(
                    column,
                    row,
                    str(count),
                    ha="center",
                    va="center",
                    color="white" if shares[row, column] > 0.5 else "black",
                )
    return figure


def image_grid(images: Sequence[Tensor], titles: Sequence[str] = (), columns: int = 8) -> Figure:
    """Draws pictures in rows.

    Args:
        images: uint8 (3, height, width) each.
        titles: One for each picture, or none at all.
        columns: How many stand in a row.
    """
    columns = max(1, min(columns, len(images)))
    rows = max(1, -(-len(images) // columns))
    height = 1.25 if not titles else 1.25 + 0.16 * (1 + max(title.count("\n") for title in titles))
    figure = Figure(figsize=(1.35 * columns, height * rows), layout="constrained", dpi=110)
    for position, image in enumerate(images):
        axes = figure.add_subplot(rows, columns, position + 1)
        axes.imshow(image.cpu().permute(1, 2, 0).numpy())
        axes.axis("off")
        if titles:
            axes.set_title(titles[position], fontsize=7, pad=2)
    return figure
