"""``python -m project.report``: one HTML page about a run, with every image inside it."""

import base64
import io
import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jsonargparse import Namespace
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, stack, tensor
from torchvision.transforms.v2.functional import resize

from project.analysis.calibration import abstention_figure, reliability, reliability_figure
from project.analysis.evaluation import Evaluation, evaluate_split
from project.analysis.gradcam import grad_cam, overlay
from project.analysis.plots import (
    as_rgb,
    class_figure,
    confusion_figure,
    curves_figure,
    read_curves,
)
from project.analysis.tables import RATES, own_metrics
from project.engine import CommandParser, OutputFile, label_names, open_data, run_command
from project.engine.cli.parser import import_modules
from project.engine.errors import UserError, printable
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.engine.run.folder import read_metrics
from project.engine.run.progress import note
from project.model import ImageClassifier
from project.model.metrics import class_rates

_THUMBNAIL = 160  # pixels


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = CommandParser(
        prog="python -m project.report",
        description="Writes one HTML page about a finished run: metrics, curves, confusion matrix, classes, calibration,"
        " mistakes, Grad-CAM and configuration. It needs no network, so it can be sent as it is.",
        epilog="example: python -m project.report runs/NAME --output page.html",
    )
    option = parser.add_argument
    option("run", type=str, help="The run's folder, as in runs/NAME.")
    option("--output", type=str | None, help="The page, by default report.html in the run.")
    option(
        "--root",
        type=str | None,
        help="The folder of the images, if not the one that the checkpoint names.",
    )
    parser.add_import()
    return parser.parse_args(args)


def report(options: Namespace) -> Path:
    """Writes the page, without images where these cannot be found."""
    import_modules(options["import"])
    run = Path(os.path.abspath(options.run))  # resolving a loop of links would be an error
    output = OutputFile("--output", options.output, default=run / "report.html")
    metrics = read_metrics(run)
    output.require_writable()
    checkpoint = run / "checkpoints" / "best.ckpt"
    about = read_checkpoint(checkpoint)[ABOUT]
    model = ImageClassifier.load_from_checkpoint(checkpoint)
    images: dict[str, Any]
    try:
        data = open_data(about, **({} if options.root is None else {"root": options.root}))
        images = image_sections(model, evaluate_split(model, data))
    except UserError as error:
        note(f"without images: {error}")
        images = {"missing": str(error)}
    page = render(run, dict(about), metrics, images)
    output.write_text(page)
    return output.path


def render(
    run: Path, about: dict[str, Any], metrics: dict[str, Any], images: dict[str, Any]
) -> str:
    """Fills the page, with the sections of images or the reason that there are none as ``missing``; escapes all text."""
    loader = PackageLoader(f"{__package__}.analysis", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["printable"] = printable
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
    """Makes the reliability diagram, ``count`` confident mistakes, and Grad-CAM of some right and wrong predictions."""
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
    found = []
    for index in indices:
        image = test.images.image(index)
        cam = _encoded(overlay(image, grad_cam(model, stack([image]))[0])) if with_cam else None
        found.append(
            {
                "source": _encoded(as_rgb(image)),
                "name": printable(test.images.name(index)),
                "label": label_names(test.labels[index].tolist(), model.class_names),
                "predicted": label_names(test.predicted[index].tolist(), model.class_names),
                "right": bool(test.correct[index]),
                "confidence": float(test.confidence[index]),
                "cam": cam,
            }
        )
    return found


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


def main() -> None:
    """Runs the command."""
    run_command(lambda: print(printable(report(parse()))))


if __name__ == "__main__":
    main()
