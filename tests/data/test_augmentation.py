from typing import Any

import pytest
import torch
from torch.nn import functional as F

from project.data.augmentation import augment, cutout, shift
from project.engine.loading.batch import ImageBatch
from project.engine.randomness import Purpose, uniform
from tests.conftest import cases

ALMOST_1 = 1 - 2.0**-24
FILL = torch.tensor([10, 20, 30], dtype=torch.uint8)
OFF: dict[str, Any] = {"flipping": False, "padding": 0, "cutout_size": 0}
ON: dict[str, Any] = {"flipping": True, "padding": 3, "cutout_size": 5}


def make_images(count=24, height=9, width=13):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(40, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


def batch_of(images):
    return ImageBatch(images, torch.arange(len(images)) % 3, 5 * torch.arange(len(images)) + 2)


def places(count):
    where = torch.rand(count, 2, generator=torch.Generator().manual_seed(1))
    where[:4] = torch.tensor([[0, 0], [0, ALMOST_1], [ALMOST_1, 0], [ALMOST_1, ALMOST_1]])
    return where


def flip_one(image, chance):
    return (
        torch.stack([image[:, :, -1 - column] for column in range(image.shape[2])], dim=2)
        if chance < 0.5
        else image
    )


def shift_one(image, place, padding):
    (y, x), (height, width) = place, image.shape[1:]
    down, right = int(y * (2 * padding + 1)), int(x * (2 * padding + 1))
    padded = F.pad(image[None].float(), (padding,) * 4, mode="reflect")[0]
    return padded[:, down : down + height, right : right + width].to(torch.uint8)


def cutout_one(image, place, side, fill):
    (y, x), (height, width) = place, image.shape[1:]
    top, left = int(y * height) - side // 2, int(x * width) - side // 2
    image = image.clone()
    for row in range(max(top, 0), min(top + side, height)):
        for column in range(max(left, 0), min(left + side, width)):
            image[:, row, column] = fill
    return image


@pytest.mark.parametrize(
    "options",
    [*((padding,) for padding in (1, 2, 4, 8)), *((side, FILL) for side in (1, 2, 5, 9, 30))],
)
def test_shift_agrees_with_reflection_padding_and_a_crop_and_cutout_with_a_plain_loop(options):
    images, where = make_images(), places(24)
    whole, one = (cutout, cutout_one) if len(options) == 2 else (shift, shift_one)
    found = whole(images, where, *options)
    expected = [one(image, w.tolist(), *options) for image, w in zip(images, where, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert (found != images).flatten(1).any(1).all() or whole is shift


def test_a_batch_is_shifted_then_flipped_then_covered():
    batch = batch_of(make_images())
    found = augment(batch, seed=3, epoch=2, fill=FILL, **ON)
    offset = uniform(3, 2, batch.indices, Purpose.SHIFT, 2).tolist()
    chance = uniform(3, 2, batch.indices, Purpose.FLIP)[:, 0].tolist()
    centre = uniform(3, 2, batch.indices, Purpose.CUTOUT, 2).tolist()
    for i, image in enumerate(batch.images):
        expected = cutout_one(
            flip_one(shift_one(image, offset[i], 3), chance[i]), centre[i], 5, FILL
        )
        assert torch.equal(found.images[i], expected)


@cases("options", OFF | {"flipping": True}, OFF | {"padding": 3}, OFF | {"cutout_size": 5}, ON)
def test_an_image_is_augmented_alike_in_any_batch_and_otherwise_by_another_seed_or_epoch(options):
    batch = batch_of(make_images())
    whole = augment(batch, seed=0, epoch=1, fill=FILL, **options).images
    for seed, epoch in ((1, 1), (0, 2)):
        assert not torch.equal(
            whole, augment(batch, seed=seed, epoch=epoch, fill=FILL, **options).images
        )
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    for part in (*torch.arange(len(whole)).split(1), order, order[:7]):
        one = ImageBatch(*(field[part] for field in batch))
        assert torch.equal(augment(one, seed=0, epoch=1, fill=FILL, **options).images, whole[part])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_batch_itself_and_its_memory_format_stay_and_make_no_difference(layout):
    batch = batch_of(make_images())
    before = [field.clone() for field in batch]
    strided = batch._replace(images=batch.images.contiguous(memory_format=layout))
    first, second = (augment(b, seed=0, epoch=0, fill=FILL, **ON) for b in (batch, strided))
    assert all(torch.equal(*fields) for fields in zip(first, second, strict=True))
    assert all(torch.equal(old, new) for old, new in zip(before, strided, strict=True))
    assert all(torch.equal(old, new) for old, new in zip(before[1:], first[1:], strict=True))
    assert torch.equal(augment(batch, seed=0, epoch=0, fill=FILL, **OFF).images, before[0])
    flipped = augment(strided, seed=0, epoch=0, fill=FILL, **OFF | {"flipping": True}).images
    assert flipped.is_contiguous(memory_format=layout)


def test_alternating_flips_show_each_image_both_ways_in_any_two_epochs_in_a_row():
    count = 4000
    images = torch.arange(2, dtype=torch.uint8).expand(count, 3, 1, 2)
    batch = ImageBatch(images, torch.zeros(count, dtype=torch.int64), torch.arange(count))
    options = OFF | {"flipping": "alternating"}
    seen = [
        augment(batch, seed=5, epoch=epoch, fill=FILL, **options).images[:, 0, 0, 0] == 1
        for epoch in range(4)
    ]
    assert torch.equal(seen[0], ~seen[1])
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert abs(int(seen[0].sum()) - count / 2) < 4 * (count / 4) ** 0.5
