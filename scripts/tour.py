"""Draws what a run leaves, into its folder: ``python scripts/tour.py runs/NAME [IMAGE ...]``, images as in the test set's names."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from project.analysis.calibration import reliability, reliability_figure
from project.analysis.evaluation import Evaluation, confused_pairs, evaluate_split
from project.analysis.gradcam import grad_cam, overlay
from project.analysis.plots import (
    confusion_figure,
    draw_curve,
    image_grid,
    read_curves,
    read_steps_per_epoch,
)
from project.data import ImageDataModule
from project.model import ImageClassifier

WIDTH, SHOWN, COLUMNS = 1200, 8, 5
RIGHT, WRONG = "#3fa34d", "#d64550"


def drawn(figure: Figure) -> Image.Image:
    """A figure as an image, without its margins."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=200, bbox_inches="tight")
    return Image.open(file)


def pasted(rows: list[list[Figure]], file: str) -> None:
    """Writes rows of figures as one image; those of a row are equally high."""
    parts = [[drawn(figure) for figure in row] for row in rows]
    heights = [round(WIDTH / sum(part.width / part.height for part in row)) for row in parts]
    page = Image.new("RGBA", (WIDTH, sum(heights)))
    for number, row in enumerate(parts):
        left = 0
        for part in row:
            small = part.resize(
                (part.width * heights[number] // part.height, heights[number]),
                Image.Resampling.LANCZOS,
            )
            page.paste(small, (left, sum(heights[:number])))
            left += small.width
    page.save(file, quality=80)
    print(file)


def confusions(test: Evaluation, names: list[str]) -> Tensor:
    """Counts of (true, predicted) classes."""
    counts = torch.zeros(len(names), len(names), dtype=torch.int64)
    return counts.index_put_((test.labels, test.predicted), torch.tensor(1), accumulate=True)


def confused(test: Evaluation, names: list[str]) -> tuple[str, list[int]]:
    """The pair of classes that is confused most often, and its mistakes, the surest first."""
    (((truth, said), _),) = confused_pairs(test).most_common(1) or [((0, 0), 0)]
    mistakes = [
        index
        for index in test.confident(correct=False, count=len(test.labels))
        if (int(test.labels[index]), int(test.predicted[index])) == (truth, said)
    ]
    total = int((test.labels == truth).sum())
    return f"{len(mistakes)} of {total} {names[truth]} taken for {names[said]}", mistakes


def draw_answer(photo: Axes, bars: Axes, test: Evaluation, index: int, names: list[str]) -> None:
    """Draws an image, and its two most probable classes as bars, the true one green."""
    photo.imshow(test.images.image(index).permute(1, 2, 0).numpy())
    shares, classes = test.probabilities[index].topk(2)
    truth = int(test.labels[index])
    for place, (share, label) in enumerate(zip(shares.tolist(), classes.tolist(), strict=True)):
        colour = RIGHT if label == truth else WRONG
        bars.barh(-place, share, height=0.9, color=colour, alpha=0.3)
        bars.text(0.02, -place, f"{names[label]} {share:.0%}", va="center", fontsize=19)
    bars.set(xlim=(0, 1), ylim=(-1.5, 0.5))
    for axes in (photo, bars):
        axes.axis("off")


def tour(run: str, test: Evaluation, names: list[str], chosen: Sequence[str]) -> Figure:
    """Draws accuracy over epochs, images with their probabilities, and the classes most confused."""
    pair, mistakes = confused(test, names)
    surest = test.confident(correct=True, count=len(test.labels))
    of_class = {int(test.labels[index]): index for index in reversed(surest)}
    rights = [of_class[label] for label in sorted(of_class)]
    listed = {test.images.name(index): index for index in range(len(test.labels))}
    shown = [listed[name] for name in chosen] or [*rights[:COLUMNS], *mistakes[:3]]
    print("\n".join(test.images.name(index) for index in shown))
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    grid = figure.add_gridspec(4, COLUMNS, height_ratios=[2.6, 0.9, 2.6, 0.9])
    curve = figure.add_subplot(grid[:2, :2], xlabel="epoch", ylim=(0, 1.02))
    curves, steps = read_curves(run), read_steps_per_epoch(Path(run))
    for split, colour in (("train", "C0"), ("val", "C1")):
        label = {"train": "training", "val": "validation"}[split]
        draw_curve(curve, curves[f"{split}/accuracy"], colour, label, steps)
    right, total = int(test.correct.sum()), len(test.labels)
    curve.set_title(f"accuracy: {right / total:.1%} of {total} test images", fontsize=20)
    curve.xaxis.label.set_fontsize(18)
    curve.tick_params(labelsize=17)
    curve.legend(loc="lower right", fontsize=19)
    curve.grid(alpha=0.3)
    for cell, index in enumerate(shown, start=2):
        row, column = divmod(cell, COLUMNS)
        photo = figure.add_subplot(grid[2 * row, column])
        draw_answer(photo, figure.add_subplot(grid[2 * row + 1, column]), test, index, names)
        if index in mistakes and cell == len(shown):  # the last but one
            photo.set_title(f"mistakes: {pair}", fontsize=20)
    return figure


def main(run: str, chosen: Sequence[str]) -> None:
    """Writes ``tour.webp``: curve, answers; and ``classes.webp``: confusion, calibration, Grad-CAM."""
    checkpoint = f"{run}/checkpoints/best.ckpt"
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    test = evaluate_split(model, ImageDataModule.load_from_checkpoint(checkpoint))
    names = model.class_names
    pasted([[tour(run, test, names, chosen)]], f"{run}/tour.webp")
    mistakes = test.confident(correct=False, count=SHOWN)
    unsure = [index for index in test.confidence.argsort().tolist() if index not in mistakes]
    doubtful = [*mistakes, *unsure][:SHOWN]
    titles = [
        f"{names[int(test.predicted[i])]} {float(test.confidence[i]):.0%}\n"
        f"is {names[int(test.labels[i])]}"
        for i in doubtful
    ]
    images = torch.stack([test.images.image(index) for index in doubtful])
    photos = image_grid([*images], titles, columns=SHOWN)
    attention = image_grid([*map(overlay, images, grad_cam(model, images))], columns=SHOWN)
    calibration = reliability_figure(reliability(test.probabilities, test.labels))
    pasted(
        [[confusion_figure(confusions(test, names), names), calibration], [photos], [attention]],
        f"{run}/classes.webp",
    )


if __name__ == "__main__":
    style.use(Path(__file__).with_name("pages.mplstyle"))
    main(sys.argv[1], sys.argv[2:])
