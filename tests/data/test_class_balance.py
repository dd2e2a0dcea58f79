"""Classes of different sizes, evened out in training: how often each comes, and what an image looks like the next time."""

from typing import Any

import pytest
import torch

from project.engine.errors import UserError
from project.engine.training.sampler import TrainingSampler, weighted_draw
from tests.data.stubs import NoiseDataModule, attached
from tests.engine.loading.stubs import epoch_of

COUNTS = torch.tensor([70, 20, 5, 1])
LABELS = torch.arange(4).repeat_interleave(COUNTS)[
    torch.randperm(96, generator=torch.Generator().manual_seed(0))
]


def draw(balance=1.0, seed=0, epoch=0, batch_size=12):
    return weighted_draw(LABELS, batch_size, balance, seed, epoch)


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("batch_size", [12, 36])  # of 36, an epoch of 96 images has two
def test_images_come_as_often_as_theory_says(balance, batch_size):
    epochs = [draw(balance, epoch=epoch, batch_size=batch_size) for epoch in range(400)]
    drawn = torch.cat(epochs) % 96
    assert len(drawn) == 400 * (96 // batch_size * batch_size)
    shares = (COUNTS**-balance / (COUNTS ** (1 - balance)).sum())[LABELS]
    expected = len(drawn) * shares
    error = (drawn.bincount(minlength=96) - expected).abs()
    assert (error < 5 * (expected * (1 - shares)).sqrt()).all()


def test_a_draw_depends_on_seed_and_epoch_alone_and_mixes_the_classes():
    places = [(seed, epoch) for seed in range(4) for epoch in range(4)]
    drawn = {(*draw(seed=seed, epoch=epoch).tolist(),) for seed, epoch in places}
    assert len(drawn) == len(places)
    assert torch.equal(draw(seed=2, epoch=3), draw(seed=2, epoch=3))
    (places_of_last,) = torch.where(LABELS[draw() % 96] == 3)
    assert int(places_of_last.max() - places_of_last.min()) > 30
    with pytest.raises(UserError, match=r"class_balance needs images of one class each"):
        weighted_draw(torch.ones(4, 2), 2, 1.0, 0, 0)


def test_for_overfitting_every_epoch_has_the_images_of_the_first():
    def keys(epoch):
        options: Any = {"draw": lambda epoch: draw(epoch=epoch), "same_each_epoch": True}
        return [*TrainingSampler(96, 12, 0, lambda: (epoch, 0), 1, 0, **options)]

    assert keys(4) == [(4, index) for _, index in keys(0)]


class Skewed(NoiseDataModule):
    def load(self):
        splits = super().load()
        splits["train"].labels = torch.tensor([0] * 54 + [1] * 3 + [2] * 3)
        return splits


@pytest.mark.parametrize("device_cache", [False, True])
def test_the_data_module_evens_out_and_augments_an_image_anew_each_time(device_cache):
    options: dict[str, Any] = {"class_balance": 1.0, "device_cache": device_cache}
    data = attached(Skewed(batch_size=12, crop_padding=2, **options))
    assert data.class_counts() == [54, 3, 3]
    images, labels, indices = map(torch.cat, zip(*epoch_of(data), strict=True))
    assert torch.equal(labels, data.splits["train"].labels[indices % 60])
    assert labels.bincount(minlength=3).min() > 10
    views = {
        (index % 60, image.numpy().tobytes())
        for image, index in zip(images, indices.tolist(), strict=True)
    }
    of_last = [view for index, view in views if index == 59]
    assert len(of_last) >= 3  # shifted and mirrored
