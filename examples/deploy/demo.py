"""Shows a page to try a checkpoint: a photo in; classes, confidence and Grad-CAM out.

pip install gradio
python examples/deploy/demo.py runs/NAME/checkpoints/best.ckpt
"""

import sys
from pathlib import Path

import gradio
import torch

from project.analysis.gradcam import grad_cam, overlay
from project.engine import FileDataset
from project.model import ImageClassifier


def page(checkpoint, photo=None):
    """Builds the page, with a photo to begin with."""
    model = ImageClassifier.load_from_checkpoint(checkpoint).eval()

    def classify(path):
        image = FileDataset([Path(path)], torch.tensor([0]), model.preprocessing).image(0)
        (prediction,) = model.predict_files([path])
        seen = overlay(image, grad_cam(model, image[None])[0])
        return prediction.probabilities, seen.permute(1, 2, 0).numpy()

    return gradio.Interface(
        classify,
        gradio.Image(photo, type="filepath", label="Photo", height=320),
        [
            gradio.Label(num_top_classes=5, label="Class"),
            gradio.Image(label="Grad-CAM: where the network looks", height=320),
        ],
        title=f"{model.arch}, {len(model.class_names)} classes",
        flagging_mode="never",
    )


if __name__ == "__main__":
    page(sys.argv[1]).launch()
