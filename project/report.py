"""``python -m project.report``: one HTML page about a run, with every image inside it."""

import os
from pathlib import Path

from jsonargparse import Namespace

from project.engine import CommandParser, OutputFile, run_command


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
    root = "The folder of the images, if not the one that the checkpoint names."
    option("--root", type=str | None, help=root)
    parser.add_import()
    return parser.parse_args(args)


def report(options: Namespace) -> None:
    """Writes the page."""
    from project.analysis.page import write_page  # here, so that --help need not import torch

    run = Path(os.path.abspath(options.run))  # resolving a loop of links would be an error
    output = OutputFile("--output", options.output, default=run / "report.html")
    write_page(run, output, options.root)
    print(output.path)


def main() -> None:
    """Runs the command."""
    run_command(lambda: report(parse()))


if __name__ == "__main__":
    main()
