import pytest
import torch

from project.data.drawn.drawing import CLASS_NAMES, draw_flowers

INDICES = torch.arange(40)
LABELS = INDICES % len(CLASS_NAMES)


def draw(part=slice(None), *, seed=0, size=32):
    return draw_flowers(LABELS[part], INDICES[part], seed=seed, size=size)


@pytest.mark.parametrize("size", [32, 51])
def test_an_image_does_not_depend_on_its_batch(size):
    whole = draw(size=size)
    order = torch.randperm(len(INDICES), generator=torch.Generator().manual_seed(0))
    for part in (order, order[:7], order[7:9], *torch.arange(6).split(1)):
        assert torch.equal(draw(part, size=size), whole[part])


def test_no_two_images_are_alike():
    images = torch.cat([draw(), draw(seed=1)]).flatten(1)
    assert len(images.unique(dim=0)) == len(images)


def test_one_index_shows_another_flower_for_another_label():
    indices = torch.zeros(len(CLASS_NAMES), dtype=torch.int64)
    images = draw_flowers(torch.arange(len(CLASS_NAMES)), indices, seed=0, size=32)
    assert len(images.flatten(1).unique(dim=0)) == len(CLASS_NAMES) == len(set(CLASS_NAMES))
