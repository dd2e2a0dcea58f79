"""Draws the photos of the tutorial, from the flowers of the built-in data."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torchvision.io import write_jpeg

from project.data.flowers_drawn import SPECIES, draw_flowers

SIZE = 96  # pixels


def draw_photos(folder: Path, kinds: Sequence[str], count: int, first: int = 0) -> Path:
    """Draws ``count`` photos of each kind into a folder for each, numbered from ``first``."""
    for kind in kinds:
        (folder / kind).mkdir(parents=True)
        label = list(SPECIES).index(kind)
        indices = torch.arange(first, first + count)
        photos = draw_flowers(torch.full((count,), label), indices, seed=label, size=SIZE)
        for number, photo in zip(indices.tolist(), photos, strict=True):
            write_jpeg(photo, str(folder / kind / f"{kind}_{number}.jpg"), quality=90)
    return folder
