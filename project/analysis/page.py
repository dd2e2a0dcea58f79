"""One HTML page about a run, with every image inside it."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, stack, tensor
from torchvision.transforms.v2.functional import resize

from project.analysis.calibration import abstention_figure, reliability, reliability_figure
from project.analysis.evaluation import Evaluation
from project.analysis.gradcam import grad_cam, overlay
from project.analysis.plots import (
    as_rgb,
    class_figure,
    confusion_figure,
    curves_figure,
    read_curves,
)
from project.analysis.tables import RATES, Metrics, class_rates, own_metrics
from project.model import ImageClassifier

_THUMBNAIL = 160  # pixels


def render(run: Path, about: Mapping[str, object], metrics: Metrics, images: dict[str, Any]) -> str:
    """Fills the page, with sections of images or ``missing``, the reason for none."""
    loader = PackageLoader(__package__, "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    config = run / "config.yaml"
    curves = read_curves(run)
    names = metrics["class_names"]
    confusion = tensor(metrics["test"]["confusion_matrix"])
    per_class = images.get("per_class") or class_rates(metrics["test"])
    return environment.get_template("report.html").render(
        run=run.name,
        about=about,
        metrics=metrics,
        own=own_metrics({split: metrics[split] for split in ("test", "val") if metrics[split]}),
        config=config.read_text("utf-8", "backslashreplace") if config.is_file() else "",
        curves=_drawn(curves_figure(curves)) if curves else None,
        confusion=_drawn(confusion_figure(confusion, names)) if confusion.dim() == 2 else None,
        class_bars=_drawn(class_figure(per_class, names)) if confusion.dim() == 3 else None,
        rates={rate: heading for rate, heading in RATES.items() if rate in per_class[0]},
        classes=list(zip(names, per_class, strict=True)),
        **{"missing": None} | images,
    )


def image_sections(model: ImageClassifier, test: Evaluation, count: int = 12) -> dict[str, Any]:
    """Draws the reliability diagram, ``count`` confident mistakes and Grad-CAM."""
    wrong, right = (
        test.confident(correct=False, count=count),
        test.confident(correct=True, count=count // 2),
    )
    try:
        attention = _shown(model, test, [*right, *wrong[: count // 2]], with_cam=True)
    except ValueError:  # no layer's output has spatial dimensions
        attention = []
    return {
        "per_class": test.per_class,
        "reliability": _drawn(reliability_figure(reliability(*test.decisions[1:]))),
        "abstention": _drawn(
            abstention_figure(test.confidence[test.known], test.correct[test.known])
        ),
        "mistakes": _shown(model, test, wrong),
        "attention": attention,
    }


def _shown(
    model: ImageClassifier, test: Evaluation, indices: list[int], with_cam: bool = False
) -> list[dict[str, Any]]:
    """Describes images for the page, pixels and Grad-CAM as ``data:`` URLs."""
    rows = []
    for index in indices:
        image = test.images.image(index)
        cam = _encoded(overlay(image, grad_cam(model, stack([image]))[0])) if with_cam else None
        rows.append(
            {
                "source": _encoded(as_rgb(image)),
                "name": test.images.name(index),
                "label": model.label_names(test.labels[index]),
                "predicted": model.label_names(test.predicted[index]),
                "right": bool(test.correct[index]),
                "confidence": float(test.confidence[index]),
                "cam": cam,
            }
        )
    return rows


def _encoded(image: Tensor) -> str:
    small = (
        resize(image, [_THUMBNAIL], antialias=True) if max(image.shape[1:]) > _THUMBNAIL else image
    )
    file = io.BytesIO()
    Image.fromarray(small.permute(1, 2, 0).numpy()).save(file, "jpeg", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _drawn(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
