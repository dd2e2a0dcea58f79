"""Augmentation on the device: each image as a plain loop would augment it, whatever batch it is in."""

import pytest
import torch
from lightkeeper.exact import UserError, uniform
from lightkeeper.images import ImageBatch
from torch.nn import functional as F

from project.data.augmentation import cutout, shift
from tests.stubs import NoiseDataModule

ALMOST_1 = 1 - 2.0**-24
FILL = torch.tensor([26, 128, 230], dtype=torch.uint8)  # the stub's mean
FLIP, SHIFT, CUTOUT = 1, 2, 3  # purposes of random numbers


def make_images(count=24, height=9, width=13):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(40, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def batch_of(images):
    return ImageBatch(images, torch.arange(len(images)) % 3, 5 * torch.arange(len(images)) + 2)


def augmented(batch, epoch=1, seed=0, **options):
    return NoiseDataModule(seed=seed, **options).augment(batch, epoch)


def shift_one(image, place, padding):
    (y, x), (height, width) = place, image.shape[1:]
    down, right = int(y * (2 * padding + 1)), int(x * (2 * padding + 1))
    padded = F.pad(image[None].float(), (padding,) * 4, mode="reflect")[0]
    return padded[:, down : down + height, right : right + width].to(torch.uint8)


def cutout_one(image, place, side, fill):
    (y, x), (height, width) = place, image.shape[1:]
    top, left = int(y * height) - side // 2, int(x * width) - side // 2
    image = image.clone()
    image[:, max(top, 0) : top + side, max(left, 0) : left + side] = fill[:, None, None]
    return image


@pytest.mark.parametrize(
    "options",
    [*((padding,) for padding in (1, 2, 4, 8)), *((side, FILL) for side in (1, 2, 5, 9, 30))],
)
def test_shift_agrees_with_reflection_padding_and_a_crop_and_cutout_with_a_plain_loop(options):
    where = torch.rand(24, 2, generator=torch.Generator().manual_seed(1))
    where[:4] = torch.tensor([[0, 0], [0, ALMOST_1], [ALMOST_1, 0], [ALMOST_1, ALMOST_1]])
    whole, single = (cutout, cutout_one) if len(options) == 2 else (shift, shift_one)
    expected = [
        single(image, w.tolist(), *options) for image, w in zip(make_images(), where, strict=True)
    ]
    assert torch.equal(whole(make_images(), where, *options), torch.stack(expected))


def test_a_batch_is_shifted_then_flipped_then_covered_with_the_mean_colour():
    batch = batch_of(make_images())
    images = shift(batch.images, uniform(3, 2, batch.indices, SHIFT, 2), 3)
    mirrored = uniform(3, 2, batch.indices, FLIP)[:, 0] < 0.5
    images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    images = cutout(images, uniform(3, 2, batch.indices, CUTOUT, 2), 5, FILL)
    assert torch.equal(
        augmented(batch, 2, 3, flip=True, crop_padding=3, cutout=5).images, images
    ), "of AugmentedDataModule.augment: where you add to it, add the same here"


def test_alternating_flips_show_each_image_both_ways_in_any_two_epochs_in_a_row():
    count = 4000
    half = 255 * (torch.arange(8) // 4)  # black on the left, white on the right
    images = half.to(torch.uint8).expand(count, 3, 4, 8)
    batch = ImageBatch(images, torch.zeros(count, dtype=torch.int64), torch.arange(count))
    options = {"flip": "alternating", "crop_padding": 0, "cutout": 0}
    first, second, third = (
        augmented(batch, epoch, 5, **options).images[:, 0, 0, 0] > 127 for epoch in range(3)
    )
    assert torch.equal(first, ~second)
    assert torch.equal(first, third)
    assert abs(int(first.sum()) - count / 2) < 4 * (count / 4) ** 0.5


@pytest.mark.parametrize("options", [{"crop_padding": 12}, {"cutout": 12}, {"cutout": 99}])
def test_what_is_wider_than_the_image_is_refused_by_its_name(options):
    batch = ImageBatch(
        *(field[:4] for field in NoiseDataModule().load()["train"].__getitems__(range(8)))
    )
    ((name, pixels),) = options.items()
    with pytest.raises(UserError, match=f"^{name}: must be below 12, .*, got {pixels}"):
        NoiseDataModule(**options).augment(batch, 0)
