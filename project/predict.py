"""``python -m project.predict``: label image files with a checkpoint."""

from jsonargparse import Namespace
from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

from project.engine import CommandParser


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
        "--output", type=str | None, help="A CSV file; by default the rows go to standard output."
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
        type=str | None,
        help="A .npy file for the features before the head, a row for each of --output.",
    )
    parser.add_argument(
        "--resume", action="store_true", help="Skip files that have a row in --output, and append."
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


def parse() -> Namespace:
    """Parses the command line."""
    return parser().parse_args()


def predict(options: Namespace) -> int:
    """Labels the files; returns 1 if some could not be read."""
    from project.engine import label_files  # here, so that --help need not import torch
    from project.model import ImageClassifier

    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    if options.flips and model.test_time_augmentation is None:
        model.test_time_augmentation = "flip"
    return label_files(model, options)


def main() -> None:
    """Runs the command as a program."""
    CommandParser.run(lambda: predict(parse()))


if __name__ == "__main__":
    main()
