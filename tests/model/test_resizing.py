"""Resizing inside exported files, beside that of evaluation."""

from typing import Any

import pytest
import torch
from lightkeeper.images import Preprocessing, prepare

from project.model.resizing import Resizing

SIZES = [(37, 37), (500, 333), (91, 20), (20, 91), (64, 47), (1, 1), (13, 300), (401, 799)]


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [3, 5])
def test_pixels_differ_from_evaluation_by_at_most_1_and_few_do(fit, interpolation, channels):
    generator = torch.Generator().manual_seed(channels)
    unequal = pixels = 0
    for crop, resize in ((32, 36), (33, 38), ([24, 53], [27, 61])):
        about: Any = {"mean": [0.2, 0.4, 0.6, 0.5, 0.9][:channels], "std": [0.2] * channels}
        about |= {"resize": resize, "crop": crop, "fit": fit, "interpolation": interpolation}
        for size in SIZES:
            shape = (channels, *size)
            image = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
            difference = Resizing(about)(image[None])[0] - prepare(image, about)
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


def test_a_long_photo_takes_little_memory():
    resize = Resizing(Preprocessing(resize=36, crop=32, mean=[0.5] * 3, std=[0.2] * 3))
    photo = torch.zeros(1, 3, 1, 100_000, dtype=torch.uint8)
    assert resize(photo).shape == (1, 3, 32, 32)  # 3,600,000 columns would take terabytes
