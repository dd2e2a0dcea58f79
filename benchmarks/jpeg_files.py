"""Image files that cost as much to decode as the photographs of flower_photos do."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from project.data.drawn.drawing import CLASS_NAMES, draw_flowers

_DRAWN = 16  # different flowers; the others differ in their noise
_NOISE = 7.5  # standard deviation on the 0-255 scale: a file of 366 x 276 then has about 55 KB, flower_photos' 58 KB
_QUALITY = 90
_SUBSAMPLING = 0  # 4:4:4, as all of flower_photos


def write_images(root: Path, count: int, width: int, height: int) -> None:
    """Writes JPEG files in two classes, ``root/train/<class>/*``, and one of each for validation and test.

    Args:
        root: The folder, which exists.
        count: How many files there are to train on.
        width: Of each in pixels.
        height: Of each in pixels, at most the width.
    """
    indices = torch.arange(min(count, _DRAWN))
    flowers = draw_flowers(indices % len(CLASS_NAMES), indices, seed=0, size=width)[:, :, :height]
    noise = np.random.default_rng(0)
    places = [f"train/{'ab'[number % 2]}/{number}" for number in range(count)]
    places += [f"{split}/{name}/0" for split in ("val", "test") for name in "ab"]
    for number, place in enumerate(places):
        pixels = flowers[number % len(flowers)].permute(1, 2, 0).numpy()
        noisy = pixels + noise.normal(0, _NOISE, pixels.shape)
        file = root / f"{place}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, quality=_QUALITY, subsampling=_SUBSAMPLING)
