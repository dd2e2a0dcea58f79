"""``python -m project.predict``: label image files with a checkpoint."""

from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeInt,
    Path_fc,
    PositiveInt,
)
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError, note

if TYPE_CHECKING:
    from torch import Tensor

    from project.model import ImageClassifier


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.predict",
        description="Labels image files with a checkpoint. Writes a row for each, in their order:"
        " path, label, confidence from 0 to 1, and why a file cannot be read. Ends with code 0;"
        " with code 1 if files could not be read, which have rows too; with code 2 if the command"
        " itself failed.",
        epilog="example: python -m project.predict runs/mine/checkpoints/best.ckpt photos"
        " --output labels.csv",
    )
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument(
        "paths",
        nargs="+",
        type=str,
        help="Files, folders with images at any depth, or - for a list on standard input.",
    )
    parser.add_argument(
        "--output",
        type=Path_fc,
        help="A CSV file; by default the rows go to standard output.",
    )
    parser.add_argument(
        "--top_k", type=PositiveInt, default=1, help="How many classes to name, best first."
    )
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="Add a column for each class; implied if images may have several.",
    )
    parser.add_argument(
        "--coverage",
        type=float | None,
        help="Add a set of classes that has the right one for this share of images, such as 0.9.",
    )
    parser.add_argument(
        "--abstain",
        type=ClosedUnitInterval,
        default=0.0,
        help="Leave label empty if the confidence is less.",
    )
    parser.add_argument(
        "--flips",
        action="store_true",
        help="Average each image with its mirror image, if the model does not already.",
    )
    parser.add_argument(
        "--embeddings",
        type=Path_fc,
        help="A .npy file for the features before the head, a row for each of --output.",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="Skip files that have a row in --output, and append; without --embeddings.",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace a file that is there already."
    )
    parser.add_argument(
        "--batch_size", type=PositiveInt, default=64, help="Images that each device sees at a time."
    )
    parser.add_argument(
        "--num_workers",
        type=NonNegativeInt | None,
        help="Processes that load images, for each device.",
    )
    parser.add_argument(
        "--trainer.accelerator", type=str, default="auto", help="cpu, gpu or another one."
    )
    parser.add_argument(
        "--trainer.devices", type=int | str, default="auto", help="How many devices to use."
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> int:
    """Labels the files; returns 1 if some could not be read."""
    # here, so that --help need not import torch
    from lightkeeper.cli import label_files

    from project.analysis.files import require_format
    from project.model import ImageClassifier

    for option, suffix in (("output", ".csv"), ("embeddings", ".npy")):
        require_format(Path(options[option] or ""), suffix, f"--{option}")
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    if options.coverage is not None and not 0.01 <= options.coverage <= 0.99:
        raise UserError(f"must be from 0.01 to 0.99, got {options.coverage}", "--coverage")
    if options.coverage is not None and "coverage" not in model.about:
        raise UserError(
            f"--coverage needs a calibrated checkpoint, whose images have one class: run python -m"
            f" project.evaluate {options.checkpoint} --calibrate"
        )
    if options.flips and model.test_time_augmentation is None:
        model.test_time_augmentation = "flip"
        if model.thresholds or options.coverage is not None:
            note("note: --flips changes probabilities whose thresholds were chosen without")
    return label_files(model, partial(columns, model, options), options)


def columns(
    model: "ImageClassifier", options: Namespace, probabilities: "Tensor"
) -> dict[str, object]:
    """Returns the columns of an image; its numbers are float32, which have the shortest text."""
    names = model.class_names
    shares = probabilities.numpy()
    predicted = model.predicted(probabilities[None])[0]
    order = probabilities.argsort(descending=True, stable=True).tolist()
    if model.has_one_class:
        order.sort(key=lambda position: position != predicted)  # chosen perhaps by a threshold
    row: dict[str, object] = {}
    for place, position in enumerate(order[: options.top_k], 1):
        suffix = f"_{place}" if place > 1 else ""
        row |= {f"label{suffix}": names[position], f"confidence{suffix}": shares[position]}
    if options.coverage is not None:
        percent = ceil(round(100 * options.coverage, 6))
        least = min(model.about["coverage"][percent - 1], max(shares))  # never an empty set
        row["set"] = model.label_names(probabilities >= least)
    if not shares[order[0]] >= options.abstain:  # nan, too
        row["label"] = None
    if not model.has_one_class:
        row["labels"] = model.label_names(predicted)
    if options.probabilities or not model.has_one_class:
        row |= {f"probability_{name}": share for name, share in zip(names, shares, strict=True)}
    return row


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
