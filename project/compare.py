"""``python -m project.compare``: finished runs side by side, over seeds."""

import io
from pathlib import Path
from typing import Literal

from jsonargparse import Namespace
from jsonargparse.typing import Path_fc
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.compare",
        description="Compares finished runs: the mean and the standard deviation of each metric"
        " over runs that differ in their seed alone, and the settings in which the others differ.",
        epilog="example: python -m project.compare runs/a_* runs/b_* --output compared.png",
    )
    parser.add_argument("runs", type=str, nargs="+", help="Folders of runs, as in runs/NAME.")
    parser.add_argument(
        "--split", type=Literal["val", "test"], default="test", help="val or test: whose metrics."
    )
    parser.add_argument(
        "--format",
        type=Literal["text", "markdown", "latex", "csv"],
        default="text",
        help="text, in which long values are cut, markdown, latex or csv.",
    )
    parser.add_argument(
        "--output", type=Path_fc, help="A .png, .svg or .pdf file for means with 95% intervals."
    )
    parser.add_argument(
        "--mcnemar",
        action="store_true",
        help="Test each pair of runs, as its checkpoints classify the images of --split.",
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> None:
    """Prints the tables, and draws the figure."""
    # here, so that --help need not import torch
    from project.analysis import comparison
    from project.analysis.evaluation import correct_images
    from project.analysis.files import write_whole
    from project.analysis.tables import escaped

    runs = comparison.finished(options.runs)
    if options.mcnemar and len(runs) < 2:
        raise UserError("it compares two runs or more, got one", "--mcnemar")
    metrics, settings = comparison.read_runs(runs, options.split)
    groups = comparison.seed_groups(settings)
    table = comparison.summary(metrics, groups)
    differing = comparison.differing(settings).groupby(groups, sort=False).first()
    tables = [comparison.readable(table), differing.T.rename_axis("setting")]
    if options.format == "csv":
        tables = [table.join(differing)]
    if options.mcnemar:
        tables.append(comparison.mcnemar(correct_images(runs, options.split)))
    text = "\n".join(comparison.formatted(part, options.format) for part in tables if part.size)
    print(escaped(text))
    if options.output is not None:
        file = io.BytesIO()
        try:
            figure = comparison.comparison_figure(metrics, groups)
            figure.savefig(file, format=Path(options.output).suffix[1:])
        except ValueError as error:  # of a format that is not known
            raise UserError(str(error), "--output") from error
        write_whole(Path(options.output), file.getvalue())


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
