"""``python -m project.report``: one HTML page about a run, with every image inside it."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser

from project.engine import ReportCommand


class ReportCLI(ReportCommand):
    """Reports on runs of this package's models."""

    module = "project.report"
    description = (
        "Writes one HTML page about a finished run: metrics, curves, confusion matrix, classes,"
        " calibration, mistakes, Grad-CAM and configuration. It needs no network, so it can be sent"
        " as it is."
    )
    example = "runs/NAME --output page.html"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options."""
        option = parser.add_argument
        option("run", type=str, help="The run's folder, as in runs/NAME.")
        option("--output", type=str | None, help="The page, by default report.html in the run.")
        root = "The folder of the images, if not the one that the checkpoint names."
        option("--root", type=str | None, help=root)

    def model_class(self) -> type:
        """Returns the base class of models."""
        import project.data  # noqa: F401  # so that the classes that checkpoints name are known
        from project.model import ImageClassifier  # here, so that --help need not import torch

        return ImageClassifier

    def sections(self, model: Any, data: Any) -> dict[str, Any]:
        """Measures the test set, and draws its images."""
        from project.analysis.evaluation import evaluate_split
        from project.analysis.page import image_sections

        return image_sections(model, evaluate_split(model, data))

    def render(
        self, run: Path, about: dict[str, Any], metrics: dict[str, Any], sections: dict[str, Any]
    ) -> str:
        """Fills the page."""
        from project.analysis.page import render

        return render(run, about, metrics, sections)


if __name__ == "__main__":
    ReportCLI.main()
