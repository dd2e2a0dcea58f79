"""The HTML report of a run."""

import base64
import io
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from lightkeeper.images import ImageDataModule
from matplotlib.figure import Figure
from torch import Tensor, stack, tensor
from torchmetrics.functional.classification import binary_auroc
from torchvision.transforms.v2.functional import resize, to_pil_image

from project.analysis.calibration import abstention_figure, reliability, reliability_figure
from project.analysis.evaluation import (
    Evaluation,
    bootstrap_intervals,
    confused_pairs,
    confusion_of,
    decisions,
    groups_of,
)
from project.analysis.gradcam import grad_cam, overlay
from project.analysis.plots import (
    as_rgb,
    confusion_figure,
    curves_figure,
    logged_panels,
    ranking_figures,
    read_curves,
    read_steps_per_epoch,
)
from project.analysis.tables import (
    Metrics,
    added_metrics,
    class_rates,
    interval_in_words,
    is_share,
)
from project.model import ImageClassifier
from project.model.metrics import macro_f1

_THUMBNAIL = 160  # pixels
_MOST_NAMES = 30  # classes of a matrix that can be read
_MOST_CLASSES = 20  # in the table, before the others are folded
_MOST_PAIRS = 6


def render(
    run: Path, about: Mapping[str, object], metrics: Metrics, images: dict[str, object]
) -> str:
    """Renders the page; ``images`` are sections, or ``missing``: why there are none."""
    config = run / "config.yaml"
    curves = read_curves(run)
    steps_per_epoch = read_steps_per_epoch(run)
    names = metrics["class_names"]
    confusion = tensor(metrics["test"].get("confusion_matrix", []))
    has_matrix = confusion.dim() == 2 and len(names) <= _MOST_NAMES
    known = names if len(confusion) else []
    rates = class_rates(metrics["test"]) if known else []
    per_class = sorted(zip(known, rates, strict=True), key=lambda row: row[1]["f1"])
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("report.html").render(
        run=run.name,
        about=about,
        record=_record(run),
        metrics=metrics,
        added=added_metrics({split: metrics[split] for split in ("test", "val") if metrics[split]}),
        interval_in_words=interval_in_words,
        is_share=is_share,
        config=config.read_text("utf-8", "backslashreplace") if _is_own_file(config) else "",
        curves=[
            _png_url(curves_figure(curves, steps_per_epoch, [title]))
            for title in logged_panels(curves)
        ],
        confusion=_png_url(confusion_figure(confusion, names)) if has_matrix else None,
        is_multilabel=confusion.dim() == 3,
        has_thresholds=any("threshold" in row for row in rates),
        classes=per_class,
        shown_classes=_MOST_CLASSES,
        **{"missing": None, "intervals": {}, "has_groups": False} | images,
    )


def _record(run: Path) -> Metrics:
    """Reads how the run was made; nothing if an earlier version made it."""
    path = run / "run.json"
    record: object = None
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(path.read_text()) if _is_own_file(path) else None
    return record if isinstance(record, dict) else {}


def _is_own_file(path: Path) -> bool:
    """Returns False for a link, which could show another file in a page that is sent."""
    return path.is_file() and not path.is_symlink()


def image_sections(
    model: ImageClassifier, test: Evaluation, data: ImageDataModule, count: int = 12
) -> dict[str, object]:
    """Draws what needs images or logits: intervals, calibration, mistakes and Grad-CAM."""
    wrong = test.confident(correct=False, count=count)
    right = test.confident(correct=True, count=count // 2)
    cams, no_cams = list[dict[str, object]](), ""
    try:
        cams = _describe_images(model, test, [*right, *wrong[: count // 2]], with_cam=True)
    except ValueError as error:  # of a network that it cannot explain
        no_cams = str(error)
    calibrated = reliability(*decisions(model, test.labels, test.logits))
    temperature = model.about.get("temperature", 1.0)
    uncalibrated = decisions(model, test.labels, test.logits, 1 / temperature)
    groups = groups_of(test, data)
    counts = {split: part.labels for split, part in data.splits.items() if part.labels.dim() == 1}
    return {
        "reliability": _png_url(reliability_figure(calibrated)),
        "abstention": _png_url(
            abstention_figure(test.confidence[test.known], test.correct[test.known])
        ),
        "calibration_error": calibrated.ece,
        "temperature": temperature,
        "uncalibrated_error": reliability(*uncalibrated).ece,
        "mistakes": _describe_images(model, test, wrong),
        "grad_cam": cams,
        "no_grad_cam": no_cams,
        "channels": len(model.preprocessing["mean"]),
        "groups": int(groups.max()) + 1,
        "has_groups": int(groups.max()) + 1 < len(groups),
        "split_counts": {
            split: labels[labels >= 0].bincount(minlength=len(model.class_names)).tolist()
            for split, labels in counts.items()
        },
        **(_single_label_sections(model, test, groups) if model.has_one_class else {}),
    }


def _single_label_sections(
    model: ImageClassifier, test: Evaluation, groups: Tensor
) -> dict[str, object]:
    """Returns intervals, the most confused pairs and, for two classes, ranking curves."""
    names = model.class_names
    known = test.known
    confused = []
    for (true, predicted), count in confused_pairs(test).most_common(_MOST_PAIRS):
        rows = ((test.labels == true) & (test.predicted == predicted)).nonzero().flatten()
        surest = rows[test.confidence[rows].argsort(descending=True)][:4].tolist()
        confused.append(
            {
                "true": names[true],
                "predicted": names[predicted],
                "interval": interval_in_words(count, int((test.labels == true).sum())),
                "images": _describe_images(model, test, surest),
            }
        )
    positive = getattr(model, "positive", 1)
    intervals = bootstrap_intervals(test, groups, positive)
    macro = macro_f1(confusion_of(test, known.nonzero().flatten()))
    if not math.isclose(test.metrics.get("f1", macro), macro, abs_tol=1e-6):
        del intervals["f1"]  # it is of another metric of this name
    sections: dict[str, object] = {"pairs": confused, "intervals": intervals}
    if len(names) == 2:
        is_positive = (test.labels[known] == positive).long()
        threshold = (model.thresholds or {}).get(names[positive], 0.5)
        shares = test.probabilities[known, positive]
        figures = ranking_figures(shares, is_positive, threshold)
        sections |= {
            "auroc": float(binary_auroc(shares, is_positive)),
            "ranking": [_png_url(figure) for figure in figures],
            "positive": names[positive],
        }
    return sections


def _describe_images(
    model: ImageClassifier, test: Evaluation, indices: list[int], with_cam: bool = False
) -> list[dict[str, object]]:
    """Lists images for the page, with pixels and Grad-CAM as ``data:`` URLs."""
    rows = []
    for index in indices:
        image = test.images.image(index)
        cam = _jpeg_url(overlay(image, grad_cam(model, stack([image]))[0])) if with_cam else None
        rows.append(
            {
                "source": _jpeg_url(as_rgb(image)),
                "name": test.images.name(index),
                "label": model.label_names(test.labels[index]),
                "predicted": model.label_names(test.predicted[index]),
                "right": bool(test.correct[index]),
                "confidence": float(test.confidence[index]),
                "cam": cam,
            }
        )
    return rows


def _jpeg_url(image: Tensor) -> str:
    if max(image.shape[1:]) > _THUMBNAIL:
        image = resize(image, [_THUMBNAIL], antialias=True)
    file = io.BytesIO()
    to_pil_image(image).save(file, "jpeg", quality=88)  # type: ignore[no-untyped-call]
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _png_url(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
