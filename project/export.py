"""``python -m project.export``: write a checkpoint so that it classifies without this project."""

from pathlib import Path

from jsonargparse import Namespace
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.export",
        description="Writes a checkpoint as one file that classifies photos of any size without this"
        " project, with preprocessing, softmax and class names inside, or as a folder for timm and"
        " the Hugging Face Hub; runs it, and compares it with the checkpoint. Ends with code 0 if"
        " they agree; otherwise writes nothing and ends with code 2.",
        epilog="example: python -m project.export runs/mine/checkpoints/best.ckpt"
        " --output mine.onnx",
    )
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_argument(
        "--output",
        type=str,
        required=True,
        help="A file, .onnx for ONNX Runtime and others or .pt2 for torch alone, or FOLDER/ for timm.",
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
    """Exports the checkpoint, and prints the file's input and output, or how to load the folder."""
    # here, so that --help need not import torch
    from project.analysis.page import model_card
    from project.model import ImageClassifier
    from project.model.formats import (
        ProbabilityNetwork,
        load_onnx,
        load_pt2,
        write_and_compare,
        write_folder,
        write_onnx,
        write_pt2,
    )
    from project.model.normalize import image_shape
    from project.model.timm_folder import load_folder

    def write_folder_with_card(
        network: ProbabilityNetwork, model: ImageClassifier, folder: Path
    ) -> None:
        write_folder(network, model, folder)
        card = model_card(model, options.checkpoint)
        (folder / "README.md").write_text(card, "utf-8", "backslashreplace")

    formats = {
        ".onnx": (write_onnx, load_onnx),
        ".pt2": (write_pt2, load_pt2),
        "/": (write_folder_with_card, load_folder),
    }
    ending = ending_of_output(options, list(formats))
    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    photos = ending != "/" and not options.prepared
    count, difference = write_and_compare(model, *formats[ending], Path(options.output), photos)
    channels, *crop = image_shape(model.preprocessing)
    size = "height, width" if photos else ", ".join(map(str, crop))
    dtype = str(model.normalization.pixels).removeprefix("torch.")
    rgb = "" if "bits" in model.preprocessing else ", RGB"
    print(f"  written               {options.output}")
    if ending != "/":
        print(f"  input                 images: {dtype} (N, {channels}, {size}){rgb}")
        print(f"  output                probabilities: float32 (N, {len(model.class_names)})")
    else:
        folder = options.output.removesuffix("/")
        print(f'  load                  timm.create_model("local-dir:{folder}", pretrained=True)')
    print(f"  compared on           {count} generated images")
    print(f"  largest difference    {difference:.2g} in probability")


def ending_of_output(options: Namespace, endings: list[str]) -> str:
    """Returns the ending of ``--output``, ``/`` for a folder, if it can be written there."""
    path = Path(options.output)
    is_folder = options.output.endswith("/") or path.is_dir()
    ending = "/" if is_folder else path.suffix
    if ending not in endings:
        raise UserError(f"--output must end in {' or '.join(endings)}, got '{path}'")
    if not path.parent.is_dir():
        raise UserError(f"must be in a folder that is there, got '{path}'", "--output")
    is_empty = path.is_dir() and not any(path.iterdir())
    if path.exists() and not (options.overwrite or is_empty):
        raise UserError(f"'{path}' is there already; --overwrite replaces it", "--output")
    return ending


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
