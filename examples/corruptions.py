"""A command: the accuracy on test images with noise, blur, JPEG artefacts and more light, from mild to severe.

python -m examples.corruptions runs/NAME/checkpoints/best.ckpt
"""

from collections import Counter

import torch
from jsonargparse import Namespace
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from project.data import ImageDataModule
from project.model import ImageClassifier

SEVERITIES: dict[str, list[float]] = {
    # those of ImageNet-C (Hendrycks and Dietterich, 2019, https://arxiv.org/abs/1903.12261)
    "noise": [0.08, 0.12, 0.18, 0.26, 0.38],  # standard deviations, where white is 1
    "blur": [1, 2, 3, 4, 6],  # standard deviations in pixels
    "jpeg": [25, 18, 15, 10, 7],  # qualities
    # ours
    "brightness": [1.2, 1.4, 1.6, 1.8, 2.0],  # factors
}


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(prog="python -m examples.corruptions", description="Spoils test images.")
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    parser.add_import()
    return parser


def corrupt(images: Tensor, name: str, severity: float) -> Tensor:
    """Changes images, uint8 (N, 3, height, width)."""
    if name == "noise":
        return F.gaussian_noise(images, sigma=severity)
    if name == "blur":
        return F.gaussian_blur(images, [4 * int(severity) + 1] * 2, [severity] * 2)
    if name == "jpeg":
        return F.jpeg(images, int(severity))
    return F.adjust_brightness(images, severity)


def main(options: Namespace) -> None:
    """Prints the accuracy of each corruption, from the mildest to the most severe."""
    model = ImageClassifier.load_from_checkpoint(options.checkpoint).eval()
    if not model.has_one_class or model.preprocessing.get("bits") == 16:
        raise UserError("must be of one class an image, and of images of 8 bits", "checkpoint")
    data = ImageDataModule.load_from_checkpoint(options.checkpoint)
    data.setup("test")
    torch.manual_seed(0)  # of the noise
    correct, total = Counter[tuple[str, float]](), 0
    for batch in data.whole_split("test"):
        total += int((batch.labels >= 0).sum())  # those that have one
        changed = {("none", 0.0): batch.images} | {
            (name, severity): corrupt(batch.images, name, severity)
            for name, severities in SEVERITIES.items()
            for severity in severities
        }
        for key, images in changed.items():
            best = model.predicted(model.predict_step(images, 0))
            correct[key] += int((best == batch.labels).sum())
    for name, severities in {"none": [0.0], **SEVERITIES}.items():
        print(f"{name:12}", *(f"{correct[name, value] / total:8.2%}" for value in severities))


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
