"""Image files for tests."""

from pathlib import Path
from typing import Any

import numpy as np
from lightkeeper.images import Preprocessing
from lightkeeper.images._decode import decode, open_image
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2


def smooth(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    x, y = 2 * np.pi * x / width, 2 * np.pi * y / height
    waves = [np.sin(x), np.cos(1.5 * y), np.sin(x + y)]
    return Image.fromarray((127.5 + 110 * np.stack(waves, axis=-1)).astype(np.uint8))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    )


def pixels(image: Image.Image) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(image.convert("RGB")).astype(np.int64)


def write_folder(root: Path, classes: dict[str, int], size: tuple[int, int] = (30, 24)) -> Path:
    """A folder of so many JPEG files for each class, no two alike."""
    for label, (name, count) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            noise(*size, seed=1000 * label + number).save(root / name / f"image {number}.jpg")
    return root


def write_images(root: Path, patterns: dict[str, int]) -> None:
    """Small files of so many numbers for each pattern of a path."""
    for path in [pattern.format(at) for pattern, count in patterns.items() for at in range(count)]:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        noise(20, 18).save(root / path)


def turned(orientation: int) -> Image.Exif:
    """EXIF data that say how an image lies."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def save(image, path, **options):
    image.save(path, **options)
    return path


def decoded(path, least=None):
    with open_image(path) as image:
        return decode(image, path, least)


def difference(image, expected):
    return np.abs(image.permute(1, 2, 0).numpy().astype(np.int64) - pixels(expected))


def prepared(image: Image.Image, about: Preprocessing) -> Tensor:
    """What torchvision's transforms make of the pixels, uint8 (3, crop, crop)."""
    crop: Any = about["crop"]
    fit = about.get("fit", "crop")
    sizes: Any = {
        "crop": {"size": about["resize"]},
        "pad": {"size": None, "max_size": crop},
        "squash": {"size": (crop, crop)},
    }
    scaled: Tensor = v2.Compose([v2.PILToTensor(), v2.Resize(**sizes[fit], antialias=True)])(image)
    left, upper = ((crop - size) // 2 for size in (scaled.shape[2], scaled.shape[1]))
    right, lower = crop - scaled.shape[2] - left, crop - scaled.shape[1] - upper
    colour = [round(255 * mean) for mean in about["mean"]]
    return (
        v2.Pad([left, upper, right, lower], fill=colour)(scaled)
        if fit == "pad"
        else v2.CenterCrop(crop)(scaled)
    )
