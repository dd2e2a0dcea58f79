"""Workings of ``report``: a page about a finished run, with its images if they are there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from ..errors import UserError
from ..loading.data_module import ImageDataModule
from ..loading.remembered import open_data
from ..run.checkpoint import About
from ..run.folder import read_metrics
from ..run.progress import note
from ..training.module import ClassifierModule
from .output import output_file

Sections = dict[str, Any]
"""What a page shows of the images of the test set, or the reason for none as ``missing``."""


def write_report(
    options: Namespace,
    model_class: type[ClassifierModule],
    draw: Callable[[Any, ImageDataModule], Sections],
    render: Callable[[Path, About, dict[str, Any], Sections], str],
) -> Path:
    """Writes a page about a finished run, and returns its path.

    Args:
        options: ``run``, ``output`` and ``root``.
        model_class: The base class of models.
        draw: Measures the test set, and draws its images.
        render: Fills the page.
    """
    run = Path(options.run).absolute()
    metrics = read_metrics(run)
    output = output_file("--output", options.output, default=run / "report.html")
    model = model_class.load_from_checkpoint(run / "checkpoints" / "best.ckpt")
    moved = {} if options.root is None else {"root": options.root}
    try:
        sections = draw(model, open_data(model.about, **moved))
    except UserError as error:
        note(f"without images: {error}")
        sections = {"missing": str(error)}
    page = render(run, model.about, metrics, sections)
    output.write_text(page, "utf-8", "backslashreplace")
    return output
