"""A command: the accuracy on test images whose pixels move towards a wrong class (FGSM, https://arxiv.org/abs/1412.6572).

python -m examples.fgsm runs/NAME/checkpoints/best.ckpt --epsilons [0,1,2,4,8]
"""

import torch
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt
from lightkeeper.cli import CommandParser, run_command
from lightkeeper.exact import UserError
from torch import Tensor
from torchvision.transforms.v2.functional import normalize

from project.data import ImageDataModule
from project.model import ImageClassifier


def parser() -> CommandParser:
    """Returns the parser of the options."""
    parser = CommandParser(prog="python -m examples.fgsm", description="Attacks a checkpoint.")
    parser.add_argument("checkpoint", type=str, help="The checkpoint.")
    epsilons = "How far each value of a pixel moves, of 255."
    parser.add_argument(
        "--epsilons", type=list[NonNegativeInt], default=[0, 1, 2, 4, 8], help=epsilons
    )
    parser.add_import()
    return parser


def uphill(model: ImageClassifier, images: Tensor, labels: Tensor) -> Tensor:
    """Returns the direction, -1, 0 or 1, in which each value raises the loss, int32 as images.

    The model takes integers, which have no gradients, so its network gets floats from 0 to 1 that
    are normalised here.
    """
    floats = (images.float() / torch.iinfo(images.dtype).max).requires_grad_()
    mean, std = model.preprocessing["mean"], model.preprocessing["std"]
    losses = model.evaluation_loss(model.network(normalize(floats, mean, std)), labels)
    return torch.autograd.grad(losses.sum(), floats)[0].sign().int()


def main(options: Namespace) -> None:
    """Prints the accuracy for each epsilon; the moved images are integers, as in files."""
    model = ImageClassifier.load_from_checkpoint(options.checkpoint).eval()
    if not model.has_one_class:
        raise UserError("must be of one class an image", "checkpoint")
    data = ImageDataModule.load_from_checkpoint(options.checkpoint)
    data.setup("test")
    correct, total = dict.fromkeys(options.epsilons, 0), 0
    for batch in data.whole_split("test"):
        images, white = batch.images, torch.iinfo(batch.images.dtype).max
        total += int((batch.labels >= 0).sum())  # those that have one
        direction = uphill(model, images, batch.labels)
        for epsilon in correct:
            moved = images.int() + epsilon * (white // 255) * direction
            probabilities = model.predict_step(moved.clamp(0, white).to(images.dtype), 0)
            correct[epsilon] += int((model.predicted(probabilities) == batch.labels).sum())
    for epsilon, count in correct.items():
        print(f"epsilon {epsilon:3}/255   accuracy {count / total:7.2%} ({count}/{total})")


if __name__ == "__main__":
    run_command(lambda: main(parser().parse_args()))
