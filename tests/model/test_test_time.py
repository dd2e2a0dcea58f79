from typing import Any

import pytest
import torch
from torch.nn import functional as F

from project.engine.errors import UserError
from project.model import ImageClassifier
from project.model.test_time import mean_logits


def images_of(height=9, width=13):
    return torch.randint(0, 256, (4, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def classify(images):
    """Depends on where a pixel is."""
    weights = torch.arange(images[0].numel(), dtype=torch.float64).sin().reshape(1, -1)
    return torch.stack([(images.flatten(1) * weights).sum(1), (images.flatten(1) * weights**2).sum(1)], dim=1)


def test_a_flip_is_the_mean_with_the_mirror_image():
    images = images_of()
    mirrored = torch.from_numpy(images.numpy()[:, :, :, ::-1].copy())
    torch.testing.assert_close(mean_logits(classify, images, "flip"), (classify(images) + classify(mirrored)) / 2)


def test_shifts_are_crops_of_the_reflected_image():
    images = images_of()
    padded = F.pad(images.double(), (1,) * 4, mode="reflect").to(torch.uint8)
    height, width = images.shape[2:]
    expected = torch.zeros(4, 2, dtype=torch.float64)
    for top, weight in ((1, 1 / 2), (0, 1 / 4), (2, 1 / 4)):  # the centre, up and left, down and right
        view = padded[:, :, top : top + height, top : top + width]
        expected += weight * (classify(view) + classify(view.flip(3))) / 2
    torch.testing.assert_close(mean_logits(classify, images, "flip_and_shift"), expected)


@pytest.mark.parametrize(("views", "count"), [("flip", 2), ("flip_and_shift", 6)])
def test_each_view_is_classified_once(views, count):
    seen: list[torch.Tensor] = []

    def remember(images):
        seen.append(images)
        return classify(images)

    mean_logits(remember, images_of(), views)
    assert len(seen) == count
    assert {view.shape for view in seen} == {images_of().shape}


def test_views_of_another_name_are_refused():
    preprocessing: Any = {"resize": 32, "crop": 32, "mean": [0.5] * 3, "std": [0.25] * 3}
    views: Any = "flips"
    with pytest.raises(UserError, match=r"test_time_augmentation must be flip or flip_and_shift, got flips"):
        ImageClassifier(["a", "b"], preprocessing, "resnet9_slim", test_time_augmentation=views)
