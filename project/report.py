"""``python -m project.report``: one HTML page about a run, with every image inside it."""

from typing import Any

from jsonargparse import Namespace

from project.engine import CommandParser


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.report",
        description="Writes one HTML page about a finished run: metrics, curves, confusion matrix,"
        " classes, calibration, mistakes, Grad-CAM and configuration. It needs no network, so it can"
        " be sent as it is.",
        epilog="example: python -m project.report runs/NAME --output page.html",
    )
    parser.add_argument("run", type=str, help="The run's folder, as in runs/NAME.")
    parser.add_argument(
        "--output", type=str | None, help="The page, by default report.html in the run."
    )
    parser.add_argument(
        "--root",
        type=str | None,
        help="The folder of the images, if not the one that the checkpoint names.",
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> None:
    """Writes the page, and prints its path."""
    # here, so that --help need not import torch
    from project.analysis.evaluation import evaluate_split
    from project.analysis.page import image_sections, render
    from project.engine import write_report
    from project.model import ImageClassifier

    def draw(model: ImageClassifier, data: Any) -> dict[str, Any]:
        return image_sections(model, evaluate_split(model, data))

    print(write_report(options, ImageClassifier, draw, render))


if __name__ == "__main__":
    CommandParser.run(lambda: main(parser().parse_args()))
