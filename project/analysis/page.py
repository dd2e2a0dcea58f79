"""Pages from templates: a run's HTML report and the model card of an exported folder."""

import base64
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from lightkeeper.cli import read_metrics
from lightkeeper.exact import UserError
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
from project.analysis.tables import RATES, Metrics, added_metrics, class_rates
from project.model import ImageClassifier

_THUMBNAIL = 160  # pixels


def render(
    run: Path, about: Mapping[str, object], metrics: Metrics, images: dict[str, object]
) -> str:
    """Renders the page; ``images`` are sections, or ``missing``: why there are none."""
    config = run / "config.yaml"
    curves = read_curves(run)
    names = metrics["class_names"]
    confusion = tensor(metrics["test"]["confusion_matrix"])
    per_class = class_rates(metrics["test"])
    return _template("report.html").render(
        run=run.name,
        about=about,
        metrics=metrics,
        added=added_metrics({split: metrics[split] for split in ("test", "val") if metrics[split]}),
        config=config.read_text("utf-8", "backslashreplace") if config.is_file() else "",
        curves=_png_url(curves_figure(curves)) if curves else None,
        confusion=_png_url(confusion_figure(confusion, names)) if confusion.dim() == 2 else None,
        class_bars=_png_url(class_figure(per_class, names)) if confusion.dim() == 3 else None,
        rates={rate: heading for rate, heading in RATES.items() if rate in per_class[0]},
        classes=list(zip(names, per_class, strict=True)),
        **{"missing": None} | images,
    )


def image_sections(model: ImageClassifier, test: Evaluation, count: int = 12) -> dict[str, object]:
    """Draws the reliability diagram, ``count`` confident mistakes and Grad-CAM."""
    wrong = test.confident(correct=False, count=count)
    right = test.confident(correct=True, count=count // 2)
    cams, no_cams = list[dict[str, object]](), ""
    try:
        cams = _describe_images(model, test, [*right, *wrong[: count // 2]], with_cam=True)
    except ValueError as error:  # of a network that it cannot explain
        no_cams = str(error)
    return {
        "reliability": _png_url(reliability_figure(reliability(*test.decisions[1:]))),
        "abstention": _png_url(
            abstention_figure(test.confidence[test.known], test.correct[test.known])
        ),
        "mistakes": _describe_images(model, test, wrong),
        "grad_cam": cams,
        "no_grad_cam": no_cams,
    }


def model_card(model: ImageClassifier, checkpoint: str) -> str:
    """Writes a model card in Markdown: use, metrics by class, data, and fields to fill in."""
    split, metrics = _newest_metrics(Path(checkpoint).absolute(), model.about)
    names = [" ".join(name.split()).replace("|", "\\|") for name in model.class_names]
    per_class = _rates_of(metrics, checkpoint) if metrics else [{}]
    card = _template("model_card.md").render(
        model=model,
        about=model.about,
        images=model.about.get("images") or {},
        versions=model.about.get("versions") or {},
        split=split,
        metrics=metrics,
        added=added_metrics({split: metrics}),
        rates={rate: heading for rate, heading in RATES.items() if rate in per_class[0]},
        classes=list(zip(names, per_class, strict=False)),
    )
    # a name may hold characters that control a terminal
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in card)


def _newest_metrics(checkpoint: Path, about: Mapping[str, Any]) -> tuple[str, Metrics]:
    """Returns the split that was measured last, and its metrics; empty if none was.

    They are those of the run's test if it is the ``best.ckpt`` of a finished run.
    """
    if checkpoint.name == "best.ckpt":
        with suppress(UserError):  # it is in no finished run
            return "test", read_metrics(checkpoint.parents[1])["test"]
    for split in ("test", "val"):
        if split in about["metrics"]:
            return split, about["metrics"][split]
    return "", {}


def _rates_of(metrics: Metrics, checkpoint: str) -> list[dict[str, float]]:
    """Returns the rates of each class, from numbers that a file may have in any form."""
    try:
        for name in ("total", "accuracy", "f1"):
            float(metrics[name])
        return class_rates(metrics)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"the metrics in '{checkpoint}' are damaged, or not those of the model card: {error!r}"
        ) from error


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(name)


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
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "jpeg", quality=88)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _png_url(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
