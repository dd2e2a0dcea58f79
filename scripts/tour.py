"""Draws what a run leaves, for the README and docs/: ``python scripts/tour.py runs/NAME``, into the run's folder."""

import io
import sys
from pathlib import Path

import torch
from matplotlib import style
from matplotlib.figure import Figure
from PIL import Image

from project.analysis.calibration import reliability, reliability_figure
from project.analysis.evaluation import evaluate_split
from project.analysis.gradcam import grad_cam, overlay
from project.analysis.plots import confusion_figure, curves_figure, image_grid, read_curves
from project.data import ImageDataModule
from project.model import ImageClassifier

WIDTH, SHOWN, THUMBNAILS = 1200, 8, 40


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


def main(run: str) -> None:
    """Writes ``tour.webp``: curves, features, mistakes; and ``classes.webp``: confusion, calibration, Grad-CAM."""
    sys.path.append(str(Path(__file__).parents[1] / "notebooks"))
    from helpers import projected, projection_figure

    checkpoint = f"{run}/checkpoints/best.ckpt"
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    test = evaluate_split(model, ImageDataModule.load_from_checkpoint(checkpoint))
    images = torch.stack([test.images.image(index) for index in range(len(test.images))])
    with torch.inference_mode():
        features = [model.eval().logits_and_features(part)[1] for part in torch.split(images, 64)]
    points = projected(torch.cat(features).flatten(1))
    near = {index: images[index] for index in range(0, len(images), len(images) // THUMBNAILS | 1)}
    mistakes = test.confident(correct=False, count=SHOWN)
    unsure = [index for index in test.confidence.argsort().tolist() if index not in mistakes]
    chosen = [*mistakes, *unsure][:SHOWN]
    names = model.class_names
    titles = [
        f"{names[int(test.predicted[i])]} {float(test.confidence[i]):.0%}\n"
        f"is {names[int(test.labels[i])]}"
        for i in chosen
    ]
    cams = grad_cam(model, images[chosen])
    photos = image_grid(list(images[chosen]), titles, columns=SHOWN)
    attention = image_grid(
        [overlay(images[i], cam) for i, cam in zip(chosen, cams, strict=True)], columns=SHOWN
    )
    overview = [
        curves_figure(read_curves(run)),
        projection_figure(points, test.labels, names, near),
    ]
    pasted([overview, [photos]], f"{run}/tour.webp")
    confusion = torch.zeros(len(names), len(names), dtype=torch.int64)
    confusion.index_put_((test.labels, test.predicted), torch.tensor(1), accumulate=True)
    calibration = reliability_figure(reliability(test.probabilities, test.labels))
    pasted(
        [[confusion_figure(confusion, names), calibration], [photos], [attention]],
        f"{run}/classes.webp",
    )


if __name__ == "__main__":
    style.use(Path(__file__).with_name("pages.mplstyle"))
    main(sys.argv[1])
