"""Resizing inside exported files, beside torchvision's transforms."""

from typing import Any

import pytest
import torch
from lightkeeper.images import Preprocessing, prepare
from torchvision.transforms import InterpolationMode, v2

from project.model.resizing import Resizing

SIZES = [(37, 37), (500, 333), (91, 20), (20, 91), (64, 47), (1, 1), (13, 300), (401, 799)]


def by_torchvision(image: torch.Tensor, about: dict[str, Any]) -> torch.Tensor:
    """What torchvision's transforms make of an image, uint8 (channels, crop, crop)."""
    crop, how = about["crop"], InterpolationMode(about["interpolation"])
    if about["fit"] == "squash":
        resized: torch.Tensor = v2.Resize((crop, crop), how)(image)
    elif about["fit"] == "pad":
        scaled = v2.Resize(None, how, max_size=crop)(image)
        upper, left = ((crop - side) // 2 for side in scaled.shape[1:])
        margins = [left, upper, crop - scaled.shape[2] - left, crop - scaled.shape[1] - upper]
        colour = [round(255 * mean) for mean in about["mean"]]
        planes = [
            v2.functional.pad(x[None], margins, [c]) for x, c in zip(scaled, colour, strict=True)
        ]
        resized = torch.cat(planes)
    else:
        resized = v2.Compose([v2.Resize(about["resize"], how), v2.CenterCrop(crop)])(image)
    return resized


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [3, 5])
def test_pixels_differ_from_torchvision_by_at_most_1_and_few_do(fit, interpolation, channels):
    generator = torch.Generator().manual_seed(channels)
    unequal = pixels = 0
    for crop, resize in ((32, 36), (33, 38)):
        about: Any = {"mean": [0.2, 0.4, 0.6, 0.5, 0.9][:channels], "std": [0.2] * channels}
        about |= {"resize": resize, "crop": crop, "fit": fit, "interpolation": interpolation}
        for size in SIZES:
            shape = (channels, *size)
            image = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            difference = Resizing(about)(image[None])[0] - by_torchvision(image, about)
            assert difference.abs().max() <= 1, (crop, size)
            unequal += difference.count_nonzero().item()
            pixels += difference.numel()
    assert unequal <= 0.001 * pixels


def test_16_bits_keep_their_precision():
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(2**16, (2, 75, 130), generator=generator).to(torch.uint16)
    about = Preprocessing(resize=36, crop=32, mean=[0.5] * 2, std=[0.2] * 2, bits=16)
    difference = Resizing(about)(image[None])[0] - prepare(image, about).float()
    assert difference.abs().max() <= 3


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_inputs_with_unequal_sides_are_those_of_evaluation(fit):
    generator = torch.Generator().manual_seed(0)
    about = Preprocessing(resize=[27, 61], crop=[24, 53], fit=fit, mean=[0.5] * 3, std=[0.2] * 3)
    for size in SIZES:
        image = torch.randint(256, (3, *size), generator=generator, dtype=torch.uint8)
        difference = Resizing(about)(image[None])[0] - prepare(image, about)
        assert difference.shape == (3, 24, 53)
        assert difference.abs().max() <= 1, size
