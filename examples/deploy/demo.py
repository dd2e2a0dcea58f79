"""Shows a page to try a checkpoint: a photo in; classes, confidence and Grad-CAM out.

pip install gradio
python examples/deploy/demo.py runs/NAME/checkpoints/best.ckpt
"""

from pathlib import Path

import gradio
import torch
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from lightkeeper.images import FileDataset
from PIL import Image

from project.analysis.gradcam import grad_cam, overlay
from project.model import ImageClassifier

SIDE = 300  # pixels


def page(checkpoint, photo=None):
    """Builds the page, with a photo to begin with."""
    model = ImageClassifier.load_from_checkpoint(checkpoint).eval()

    def classify(path):
        if path is None:
            raise gradio.Error("choose a photo first")
        try:
            image = FileDataset([Path(path)], torch.tensor([0]), model.preprocessing).image(0)
            (prediction,) = model.predict_files([path])
            shares = torch.tensor([[*prediction.probabilities.values()]])
            label = model.label_names(model.predicted(shares)[0])
        except UserError as error:
            raise gradio.Error(str(error)) from error
        try:
            seen = overlay(image, grad_cam(model, image[None])[0]).permute(1, 2, 0).numpy()
        except ValueError as error:  # of a network with a class token
            gradio.Warning(f"no Grad-CAM: {error}")
            return label, prediction.probabilities, None
        return (
            label,
            prediction.probabilities,
            Image.fromarray(seen).resize((SIDE, SIDE)),
        )

    return gradio.Interface(
        classify,
        gradio.Image(photo, type="filepath", label="Photo", height=SIDE),
        [
            gradio.Textbox(label="Class"),  # by the thresholds, if the checkpoint has any
            gradio.Label(num_top_classes=5, label="Probabilities", show_heading=False),
            gradio.Image(label="Grad-CAM: where the network looks", height=SIDE),
        ],
        title=f"{model.arch}, {len(model.class_names)} classes",
        flagging_mode="never",
    )


def main(options):
    """Shows the page until it is stopped."""
    page(options.checkpoint).launch()


if __name__ == "__main__":
    parser = CommandParser(prog="demo.py", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_import()
    run_command(lambda: main(parser.parse_args()))
