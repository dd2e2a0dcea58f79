"""Draws the README's image: ``python scripts/flowers.py``, from the repository's root."""

import torch
from PIL import Image
from torchvision.utils import make_grid

from project.data.drawn.drawing import CLASS_NAMES, draw_flowers

COLUMNS, ROWS, SIZE = 12, 4, 72


def main() -> None:
    """Writes ``docs/flowers.jpg``: the built-in data, the eight species in turns."""
    indices = torch.arange(COLUMNS * ROWS)
    flowers = draw_flowers(indices % len(CLASS_NAMES), indices, seed=3, size=SIZE)
    grid = make_grid(flowers, nrow=COLUMNS, padding=2, pad_value=255)
    Image.fromarray(grid.permute(1, 2, 0).numpy()).save("docs/flowers.jpg", quality=88)


if __name__ == "__main__":
    main()
