"""``python -m project.export``: write a checkpoint so that it classifies without this project."""

from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import Path_fc
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.export",
        description="Writes a checkpoint as one file that classifies photos of any size without this"
        " project, with preprocessing, softmax and class names inside; runs it, and compares it with"
        " the checkpoint. Ends with code 0 if they agree; otherwise writes nothing and ends with"
        " code 2.",
        epilog="example: python -m project.export runs/mine/checkpoints/best.ckpt"
        " --output mine.onnx",
    )
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument(
        "--output",
        type=Path_fc,
        required=True,
        help="A file: .onnx for ONNX Runtime and others, or .pt2 for torch alone.",
    )
    parser.add_argument(
        "--prepared",
        action="store_true",
        help="Leave resizing out: the file takes images that have the network's size.",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace a file that is there already."
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> None:
    """Exports the checkpoint, and prints the file's input and output."""
    # here, so that --help need not import torch
    from project.model import ImageClassifier
    from project.model.formats import load_onnx, load_pt2, write_and_compare, write_onnx, write_pt2
    from project.model.normalize import image_shape

    formats = {".onnx": (write_onnx, load_onnx), ".pt2": (write_pt2, load_pt2)}
    path = Path(options.output)
    if path.suffix not in formats:
        raise UserError(f"must end in {' or '.join(formats)}, got '{options.output}'", "--output")
    if path.exists() and not options.overwrite:
        raise UserError(f"'{options.output}' is there already; --overwrite replaces it", "--output")
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    photos = not options.prepared
    count, difference = write_and_compare(model, *formats[path.suffix], path, photos)
    channels, *crop = image_shape(model.preprocessing)
    size = "height, width" if photos else ", ".join(map(str, crop))
    dtype = str(model.normalization.pixels).removeprefix("torch.")
    rgb = "" if "bits" in model.preprocessing else ", RGB"
    print(f"  written               {options.output}")
    print(f"  input                 images: {dtype} (N, {channels}, {size}){rgb}")
    print(f"  output                probabilities: float32 (N, {len(model.class_names)})")
    print(f"  compared on           {count} generated images")
    print(f"  largest difference    {difference:.2g} in probability")


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
