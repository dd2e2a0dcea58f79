"""``python -m project.export``: write a checkpoint as one file that classifies without this project."""

from jsonargparse import Namespace

from project.engine import CommandParser, run_command


def parse(args: list[str] | None = None) -> Namespace:
    """Parses the command line, ``sys.argv`` by default."""
    parser = CommandParser(
        prog="python -m project.export",
        description="Writes a checkpoint as one file that classifies without this project, with normalisation,"
        " softmax and class names inside; runs the file, and compares it with the checkpoint. Ends with code 0"
        " if they agree; otherwise writes nothing and ends with code 2.",
        epilog="example: python -m project.export runs/mine/checkpoints/best.ckpt --output mine.onnx",
    )
    option = parser.add_argument
    option("checkpoint", type=str, help="The checkpoint.")
    file = "The file: .onnx for ONNX Runtime and others, .pt2 for torch alone."
    option("--output", type=str, required=True, help=file)
    images = "Images to compare on, a folder; by default generated ones."
    option("--images", type=str | None, help=images)
    parser.add_import()
    option("--overwrite", action="store_true", help="Replaces a file that is there.")
    return parser.parse_args(args)


def export(options: Namespace) -> None:
    """Writes the file, and prints what it takes and returns."""
    from project.engine import export_model  # here, so that --help need not import torch
    from project.model import ImageClassifier
    from project.model.test_time import ProbabilityNetwork

    path, model, images, difference = export_model(ImageClassifier, ProbabilityNetwork, options)
    size = ", ".join(map(str, images.shape[1:]))
    dtype = str(images.dtype).removeprefix("torch.")
    rgb = "" if "bits" in model.preprocessing else ", RGB"
    print(f"  written               {path} ({path.stat().st_size / 1e6:.2f} MB)")
    print(f"  input                 images: {dtype} (N, {size}){rgb}")
    print(f"  output                probabilities: float32 (N, {len(model.class_names)})")
    print(f"  compared on           {len(images)} images, {options.images or 'generated'}")
    print(f"  largest difference    {difference:.2g} in probability")


def main() -> None:
    """Runs the command."""
    run_command(lambda: export(parse()))


if __name__ == "__main__":
    main()
