"""Views of an image at test time, and resizing on the device."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from project.analysis.exported import ProbabilityNetwork
from project.engine.errors import UserError
from project.model.normalize import resized
from project.model.test_time import Views, mean_logits
from tests.model.test_classifier import classifier, make_images


@pytest.mark.parametrize(("views", "places"), [("flip", {1: 1.0}), ("flip_and_shift", {1: 1 / 2, 0: 1 / 4, 2: 1 / 4})])
def test_views_are_crops_of_the_reflected_image_and_their_mirror_images(views: Views, places: dict[int, float]):
    images = torch.randint(0, 256, (4, 3, 9, 13), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = torch.arange(images[0].numel(), dtype=torch.float64).sin().reshape(1, -1)
    seen: list[torch.Size] = []

    def classify(view):
        """Depends on where a pixel is."""
        seen.append(view.shape)
        return torch.stack([(view.flatten(1) * weights).sum(1), (view.flatten(1) * weights**2).sum(1)], dim=1)

    found = mean_logits(classify, images, views)
    assert seen == [images.shape] * 2 * len(places)
    padded = F.pad(images.double(), (1,) * 4, mode="reflect").to(torch.uint8)
    expected = torch.zeros(4, 2, dtype=torch.float64)
    for top, weight in places.items():  # the centre, up and left, down and right
        view = padded[:, :, top : top + 9, top : top + 13]
        expected += weight * (classify(view) + classify(torch.from_numpy(view.numpy()[..., ::-1].copy()))) / 2
    torch.testing.assert_close(found, expected)


def test_a_smaller_image_is_the_one_of_pil_and_another_stays():
    pixels = torch.randint(256, (50, 50, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = pixels.permute(2, 0, 1)[None]
    expected = np.array(Image.fromarray(pixels.numpy()).resize((32, 32), Image.Resampling.BILINEAR))
    found = resized(images, 32)[0].permute(1, 2, 0)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=0, atol=1.0)
    assert resized(images, None) is resized(images, 50) is images


def test_predicting_testing_and_exporting_take_means_over_views_and_validation_does_not():
    model = classifier(test_time_augmentation="flip_and_shift").eval()
    images = make_images(4)
    with torch.no_grad():
        exact = model(images)
        expected = mean_logits(model, images, "flip_and_shift")
        predicted, exported = model.predict_step(images, 0), ProbabilityNetwork(model).eval()(images)
        val, test = (step((images, torch.arange(4) % 3), 0) for step in (model.validation_step, model.test_step))
    assert not torch.allclose(exact, expected, atol=1e-3)
    torch.testing.assert_close(val, exact)
    for found in (predicted, exported, test.softmax(1)):
        torch.testing.assert_close(found, expected.softmax(1))
    model.test_time_augmentation = "rotate"  # as a checkpoint may say
    with pytest.raises(UserError, match="test_time_augmentation must be flip or flip_and_shift, got rotate"):
        model.predict_step(images, 0)


@pytest.mark.parametrize("exact", [None, True, False])
def test_evaluation_is_in_float32_unless_training_s_precision_is_asked_for(exact):
    model, batch = classifier(exact_evaluation=exact).eval(), (make_images(4), torch.arange(4) % 3)
    with torch.no_grad():
        expected = model(batch[0])
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(batch[0]).float()
            found = [step(batch, 0) for step in (model.validation_step, model.test_step)]
    assert not torch.equal(rounded, expected)
    assert all(torch.equal(one, rounded if exact is False else expected) for one in found)
