"""``python -m project.export``: write a checkpoint so that it classifies without this project."""

from typing import Any

from jsonargparse import ArgumentParser, Namespace

from project.engine import ExportCommand


class ExportCLI(ExportCommand):
    """Exports this package's models."""

    module = "project.export"
    description = (
        "Writes a checkpoint as one file that classifies without this project, with normalisation,"
        " softmax and class names inside, or as a folder for timm and the Hugging Face Hub; runs"
        " it, and compares it with the checkpoint. Ends with code 0 if they agree; otherwise writes"
        " nothing and ends with code 2."
    )
    example = "runs/mine/checkpoints/best.ckpt --output mine.onnx"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Adds the options."""
        option = parser.add_argument
        option("checkpoint", type=str, help="The checkpoint.")
        output = "A file, .onnx for ONNX Runtime and others, .pt2 for torch alone; or a FOLDER/."
        option("--output", type=str, required=True, help=output)
        images = "Images to compare on, a folder; by default generated ones."
        option("--images", type=str | None, help=images)
        option("--overwrite", action="store_true", help="Replaces a file that is there.")

    def model_class(self) -> type:
        """Returns the base class of models."""
        from project.model import ImageClassifier  # here, so that --help need not import torch

        return ImageClassifier

    def network_of(self, model: Any) -> Any:
        """Returns the network to export, from pixels to probabilities."""
        from project.model.test_time import ProbabilityNetwork

        return ProbabilityNetwork(model)

    def card(self, model: Any, about: dict[str, Any], split: str, metrics: dict[str, Any]) -> str:
        """Fills the model card of a folder."""
        from project.analysis.card import model_card

        return model_card(model, about, split, metrics)

    def show_results(self, exported: Any, options: Namespace) -> None:
        """Prints what the file takes and returns, or how timm loads the folder."""
        path, model, images, difference = exported
        size = ", ".join(map(str, images.shape[1:]))
        dtype = str(images.dtype).removeprefix("torch.")
        rgb = "" if "bits" in model.preprocessing else ", RGB"
        print(f"  written               {path}")
        if path.is_dir():
            print(f'  load                  timm.create_model("local-dir:{path}", pretrained=True)')
        else:
            print(f"  input                 images: {dtype} (N, {size}){rgb}")
            print(f"  output                probabilities: float32 (N, {len(model.class_names)})")
        print(f"  compared on           {len(images)} images, {options.images or 'generated'}")
        print(f"  largest difference    {difference:.2g} in probability")


if __name__ == "__main__":
    ExportCLI.main()
