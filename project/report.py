"""``python -m project.report``: one HTML page about a run, with every image inside it."""

from collections.abc import Mapping
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import Path_fc
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError, note


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.report",
        description="Writes one HTML page about a finished run: metrics with 95% intervals, curves,"
        " classes, calibration, mistakes, Grad-CAM and configuration. It needs no network, so it can"
        " be sent as it is.",
        epilog="example: python -m project.report runs/NAME --output page.html",
    )
    parser.add_argument("run", type=str, help="The run's folder, as in runs/NAME.")
    parser.add_argument(
        "--output", type=Path_fc, help="The page, by default report.html in the run."
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
    from lightkeeper.cli import read_metrics
    from lightkeeper.images import ImageDataModule

    from project.analysis.evaluation import evaluate_split, require_tested
    from project.analysis.files import require_replaceable, write_whole
    from project.analysis.page import image_sections, render
    from project.model import ImageClassifier

    run = Path(options.run).absolute()
    page = Path(options.output or run / "report.html")
    require_replaceable(page, ".html")
    metrics = read_metrics(run)
    shown = {"val", "epoch", "step", "selection", "class_names", "versions"}
    if not shown <= metrics.keys():
        raise UserError(f"'{run}': its metrics.json has no {min(shown - metrics.keys())}")
    best = run / "checkpoints" / "best.ckpt"
    model = ImageClassifier.load_from_checkpoint(best)
    require_tested(model, run, metrics)
    moved = {} if options.root is None else {"root": options.root}
    try:
        data = ImageDataModule.load_from_checkpoint(best, **moved)
        test = evaluate_split(model, data)
        if model.about.get("digests", {}).get("test") not in (None, data.digests()["test"]):
            raise UserError("the test set has other images than when it was tested")
        sections, measured = image_sections(model, test, data), test.metrics
    except UserError as error:
        missing = f"--{error}" if error.option == "root" else str(error)
        note(f"without images: {missing}")
        sections = {"missing": missing}
        measured = calibrated(metrics["test"], model.thresholds or {})
    if "temperature" in model.about:  # the run's own are of before the calibration
        metrics["test"] = measured
    if options.output is None and page.is_symlink():
        page.unlink()  # perhaps to elsewhere, if the run is not yours
    write_whole(
        page, render(run, model.about, metrics, sections).encode("utf-8", "backslashreplace")
    )
    print(page)


def calibrated(test: Mapping[str, object], thresholds: Mapping[str, float]) -> dict[str, object]:
    """Returns those of a run's metrics that a calibration keeps, with its thresholds."""
    from project.analysis.tables import added_metrics

    of_probabilities = {"loss", "thresholds", *added_metrics({"test": test})}
    kept = {name: test[name] for name in test.keys() - of_probabilities}
    return {**kept, "thresholds": [*thresholds.values()]}


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
