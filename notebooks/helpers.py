"""Functions that the notebooks share: their working folder, their runs, neighbours, label errors, and curves of runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from lightkeeper.cli import import_modules
from lightkeeper.exact import UserError
from lightkeeper.images import Predictions
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor
from torch.nn import functional as F

from project.analysis.plots import as_rgb, draw_curve, tick_label


def start() -> None:
    """Works in the folder that holds ``runs/``, shows user errors as one line, imports what IMPORT names."""
    os.chdir(Path(__file__).parents[1])
    UserError._render_traceback_ = lambda error: [f"error: {error}"]  # type: ignore[attr-defined]  # IPython asks for it
    if modules := os.environ.get("IMPORT"):
        import_modules(modules)


def find_checkpoint() -> Path:
    """Finds the checkpoint of the environment variable CHECKPOINT, by default the newest ``best.ckpt``."""
    newest = max(Path("runs").glob("*/checkpoints/best.ckpt"), key=os.path.getmtime, default=None)
    path = os.environ.get("CHECKPOINT") or newest
    if path is None:
        raise UserError("there is no checkpoint in runs/ yet; train one with `make fit`")
    return Path(path)


def find_runs() -> dict[str, Path]:
    """Finds the runs of the environment variable RUNS, by default all finished ones, by their names."""
    finished = sorted(path.parent for path in Path("runs").glob("*/metrics.json"))
    runs = [Path(name) for name in os.environ.get("RUNS", "").split()] or finished
    if len({*runs}) < 2:
        raise UserError("two finished runs are needed; train more with `make fit`, or set RUNS")
    names = [run.name for run in runs]
    return {run.name if names.count(run.name) == 1 else str(run): run for run in runs}


def suspects(predictions: Predictions, count: int) -> list[int]:
    """Finds the misclassified images with the least probable labels: likely label errors."""
    wrong = (predictions.known & ~predictions.correct).nonzero().flatten()
    order = predictions.label_probability[wrong].argsort(stable=True)
    return wrong[order][:count].tolist()


def nearest(embeddings: Tensor, queries: Tensor, count: int) -> Tensor:
    """Finds for each query the positions of the ``count`` embeddings of greatest cosine similarity, best first."""
    similarity = F.normalize(queries, dim=1) @ F.normalize(embeddings, dim=1).T
    return similarity.topk(count, dim=1).indices


def projected(embeddings: Tensor) -> Tensor:
    """Projects embeddings onto their two principal components, of arbitrary sign."""
    centred = embeddings.double() - embeddings.double().mean(0)
    points: Tensor = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    return points


def projection_figure(
    points: Tensor, labels: Tensor, class_names: list[str], thumbnails: dict[int, Tensor]
) -> Figure:
    """Draws projected embeddings in the colours of their classes, and some images by their positions."""
    figure = Figure(figsize=(8, 6), layout="constrained", dpi=110)
    axes = figure.add_subplot(xlabel="first component", ylabel="second component")
    for label, name in enumerate(class_names):
        of_class = labels == label if labels.dim() == 1 else labels[:, label] > 0
        x, y = points[of_class].T
        # above the images, whose order is 3
        axes.scatter(x, y, s=8, color=f"C{label % 10}", label=name, zorder=4)
    for position, image in thumbnails.items():
        small = F.interpolate(as_rgb(image)[None].float() / 255, (28, 28), mode="area")[0]
        picture = OffsetImage(small.permute(1, 2, 0).numpy())
        x, y = points[position].tolist()
        axes.add_artist(AnnotationBbox(picture, (x, y), pad=0.1))
    for text in figure.legend(loc="outside right upper", fontsize=8).get_texts():
        text.set_parse_math(False)
    return figure


def runs_figure(
    runs: Mapping[str, Mapping[str, Mapping[int, float]]],
    steps_per_epoch: Mapping[str, float],
    metric: str = "accuracy",
) -> Figure:
    """Draws a metric of several runs, read by ``read_curves``, over epochs, or steps if a run's are unknown."""
    by_epoch = all(steps_per_epoch.values())
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=110)
    for axes, split in zip(figure.subplots(1, 2, sharey=True), ("train", "val"), strict=True):
        axes.set(title=f"{split}/{metric}", xlabel="epoch" if by_epoch else "step")
        for position, (run, curves) in enumerate(runs.items()):
            points = curves.get(f"{split}/{metric}", {})
            steps = steps_per_epoch[run] if by_epoch else 0.0
            draw_curve(axes, points, f"C{position % 10}", tick_label(run), steps)
        axes.grid(alpha=0.3)
    entries = axes.get_legend_handles_labels()
    legend = figure.legend(*entries, loc="outside lower center", ncols=3, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def balance_figure(counts: Mapping[str, Sequence[int]], class_names: Sequence[str]) -> Figure:
    """Draws the number of images of each class as bars stacked by split, the first class on top."""
    size = (7, 0.3 * len(class_names) + 1.1)
    figure = Figure(figsize=size, layout="constrained", dpi=110)
    axes = figure.add_subplot(axisbelow=True, xlabel="images")
    positions = range(len(class_names))
    axes.set_yticks(positions, [tick_label(name) for name in class_names], parse_math=False)
    axes.set_ylim(len(class_names) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    left = [0] * len(class_names)
    for split, images in counts.items():
        axes.barh(positions, images, left=left, label=split)
        left = [sum(pair) for pair in zip(left, images, strict=True)]
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure
