"""Images become input."""

import numpy as np
import torch
from PIL import Image

from project.model.normalize import resized


def test_at_its_own_size_an_image_stays_as_it_is():
    images = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    for size in (None, 8):
        assert resized(images, size) is images


def test_a_smaller_image_is_the_one_of_pil():
    pixels = torch.randint(256, (50, 50, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    expected = Image.fromarray(pixels.numpy()).resize((32, 32), Image.Resampling.BILINEAR)
    (found,) = resized(pixels.permute(2, 0, 1)[None], 32)
    for channel, band in zip(found, expected.split(), strict=True):
        wanted = torch.from_numpy(np.array(band)).float()
        torch.testing.assert_close(channel, wanted, rtol=0, atol=1.0)
