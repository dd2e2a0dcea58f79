"""``python -m project.report``: one HTML page about a run, with every image inside it."""

import json
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from project.analysis.data import open_data
from project.analysis.evaluation import evaluate_split
from project.analysis.report import image_sections, render
from project.analysis.tables import chosen_output, replacing, require_writable
from project.engine.cli.command import one_line_errors
from project.engine.cli.command_line import IMPORT, import_modules
from project.engine.cli.parser import OneLineErrorParser
from project.engine.errors import UserError, printable
from project.engine.run.checkpoint import ABOUT, read_checkpoint
from project.engine.run.progress import note
from project.model import ImageClassifier


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = OneLineErrorParser(
        prog="python -m project.report",
        description="Writes one HTML page about a finished run: metrics, curves, confusion matrix, classes, calibration,"
        " mistakes, Grad-CAM and configuration. It needs no network, so it can be sent as it is.",
        epilog="example: python -m project.report runs/NAME --output page.html",
    )
    option = parser.add_argument
    option("run", type=str, help="The run's folder, as in runs/NAME.")
    option("--output", type=str | None, help="The page, by default report.html in the run.")
    option("--root", type=str | None, help="The folder of the images, if not the one that the checkpoint names.")
    option("--import", **IMPORT)
    return parser.parse_args(args)


def report(options: Namespace) -> Path:
    """Writes the page, without images where these cannot be found."""
    import_modules(options["import"])
    run = Path(options.run).resolve()
    output = chosen_output(options.output, run / "report.html")
    try:
        metrics: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"'{printable(str(run))}' is no finished run: it has no metrics.json") from error
    require_writable("--output", output)
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
    with replacing("--output", output) as target:
        target.write_text(page, "utf-8", "backslashreplace")  # as its header says, wherever it is written
    return output


def main() -> None:
    """Runs the command."""
    with one_line_errors():
        print(printable(report(parse())))


if __name__ == "__main__":
    main()
