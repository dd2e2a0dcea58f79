"""``python -m project.export``: write a checkpoint so that it classifies without this project."""

from typing import Any

from jsonargparse import Namespace
from lightkeeper.cli import CommandParser, run_command


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(
        prog="python -m project.export",
        description="Writes a checkpoint as one file that classifies without this project, with"
        " normalisation, softmax and class names inside, or as a folder for timm and the Hugging"
        " Face Hub; runs it, and compares it with the checkpoint. Ends with code 0 if they agree;"
        " otherwise writes nothing and ends with code 2.",
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
        "--overwrite", action="store_true", help="Replace a file that is there already."
    )
    parser.add_import()
    return parser


def main(options: Namespace) -> None:
    """Exports the checkpoint, and prints the file's input and output, or how to load the folder."""
    # here, so that --help need not import torch
    from lightkeeper.cli import export_model

    from project.analysis.page import model_card
    from project.model import ImageClassifier
    from project.model.formats import (
        ProbabilityNetwork,
        load_onnx,
        load_pt2,
        write_folder,
        write_onnx,
        write_pt2,
    )
    from project.model.timm_folder import load_folder

    def write_folder_with_card(network: Any, model: ImageClassifier, folder: Any) -> None:
        write_folder(network, model, folder)
        card = model_card(model, options.checkpoint)
        (folder / "README.md").write_text(card, "utf-8", "backslashreplace")

    model = ImageClassifier.load_from_checkpoint(options.checkpoint)
    network = ProbabilityNetwork(model)
    formats = {
        ".onnx": (write_onnx, load_onnx),
        ".pt2": (write_pt2, load_pt2),
        "/": (write_folder_with_card, load_folder),
    }
    images, difference = export_model(model, network, options, formats)
    size = ", ".join(map(str, images.shape[1:]))
    dtype = str(images.dtype).removeprefix("torch.")
    rgb = "" if "bits" in model.preprocessing else ", RGB"
    print(f"  written               {options.output}")
    if options.output.endswith((".onnx", ".pt2")):
        print(f"  input                 images: {dtype} (N, {size}){rgb}")
        print(f"  output                probabilities: float32 (N, {len(model.class_names)})")
    else:
        folder = options.output.removesuffix("/")
        print(f'  load                  timm.create_model("local-dir:{folder}", pretrained=True)')
    print(f"  compared on           {len(images)} generated images")
    print(f"  largest difference    {difference:.2g} in probability")


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
