"""Draws the pictures of docs/ that need no run, or the tutorial's: ``python scripts/pictures.py``, from the repository's root."""

import csv
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import torch
from lightkeeper.images import Preprocessing, prepare
from matplotlib import style
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor
from torch.nn.functional import one_hot
from torchvision.io import decode_image
from torchvision.transforms import v2
from torchvision.utils import make_grid

from project.data.augmentation import cutout
from project.data.flowers_drawn import SPECIES, draw_flowers

COLUMNS, ROWS, SIZE = 12, 4, 72
SIDE = 160  # of the images that are transformed, in pixels
Fit = Literal["crop", "pad", "squash"]


def builtin() -> None:
    """Writes ``flowers.jpg``: the built-in data, the eight species in turns."""
    indices = torch.arange(COLUMNS * ROWS)
    flowers = draw_flowers(indices % len(SPECIES), indices, seed=3, size=SIZE)
    grid = make_grid(flowers, nrow=COLUMNS, padding=2, pad_value=255)
    Image.fromarray(grid.permute(1, 2, 0).numpy()).save("docs/flowers.jpg", quality=88)


def table(images: Sequence[Tensor], titles: Sequence[str], file: str, columns: int = 4) -> None:
    """Writes images, uint8 (3, height, width), in rows with their titles."""
    widths = [image.shape[2] / image.shape[1] for image in images[:columns]]
    rows = len(images) // columns
    figure = Figure(figsize=(1.5 * sum(widths), 1.8 * rows), layout="constrained")
    places = figure.subplots(rows, columns, width_ratios=widths)
    for axes, image, title in zip(places.flat, images, titles, strict=True):
        axes.imshow(image.permute(1, 2, 0).numpy())
        axes.set_title(title, fontsize=12)
        axes.axis("off")
    figure.savefig(f"docs/{file}", dpi=110, pil_kwargs={"quality": 88})


def fits(flowers: Tensor) -> None:
    """Writes ``fit.webp``: a wide image as each ``--data.fit`` shows it to the network."""
    wide = torch.cat([flowers[0], flowers[1]], dim=2)
    recipes = [
        Preprocessing(resize=SIDE * 8 // 7, crop=SIDE, fit=fit, mean=[0.5] * 3, std=[1.0] * 3)
        for fit in get_args(Fit)
    ]
    with TemporaryDirectory() as folder:
        file = Path(folder, "wide.png")
        Image.fromarray(wide.permute(1, 2, 0).numpy()).save(file)
        fitted = [prepare(file, recipe) for recipe in recipes]
    table([wide, *fitted], ["the file", *get_args(Fit)], "fit.webp")


def augmentations(flowers: Tensor) -> None:
    """Writes ``augmentation.webp``: what each kind of augmentation does to a flower."""
    flower, pair = flowers[2], flowers[[2, 3]]
    covered = cutout(flower[None], torch.tensor([[0.4, 0.6]]), SIDE // 3, torch.full((3,), 128.0))[
        0
    ]
    labels = one_hot(torch.arange(2), 2).float()
    torch.manual_seed(4)
    randomly, trivially = v2.RandAugment(magnitude=12)(flower), v2.TrivialAugmentWide()(flower)
    blended = v2.MixUp(alpha=5.0, num_classes=2)(pair.float(), labels)[0][0]
    pasted = v2.CutMix(alpha=5.0, num_classes=2)(pair.float(), labels)[0][0]
    shown = [
        flower,
        v2.functional.resized_crop(flower, 17, 40, 103, 103, [SIDE, SIDE]),
        flower.flip(-1),
        covered,
        randomly,
        trivially,
        blended,
        pasted,
    ]
    titles = [
        "the image",
        "crop",
        "flip",
        "cutout",
        "RandAugment",
        "TrivialAugment",
        "MixUp",
        "CutMix",
    ]
    table([image.to(torch.uint8) for image in shown], titles, "augmentation.webp")


def tutorial(labels: Path) -> None:
    """Writes ``tutorial.webp``: new photos as the tutorial's network labels them, every other one."""
    with labels.open(newline="") as file:
        rows = [*csv.DictReader(file)][::2]
    titles = [f"{row['label']} {float(row['confidence']):.0%}" for row in rows]
    table([decode_image(row["path"]) for row in rows], titles, "tutorial.webp")


def main() -> None:
    """Writes all of them; the tutorial's if its notebook has run."""
    builtin()
    flowers = draw_flowers(torch.tensor([3, 6, 1, 5]), torch.arange(4), seed=5, size=SIDE)
    fits(flowers)
    augmentations(flowers)
    labels = Path("runs/tutorial/labels.csv")
    if labels.exists():
        tutorial(labels)


if __name__ == "__main__":
    style.use(Path(__file__).with_name("pages.mplstyle"))
    main()
