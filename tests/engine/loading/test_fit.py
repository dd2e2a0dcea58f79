"""Whole images in the network's square: ``pad`` and ``squash`` against torchvision and PIL, in evaluation and training."""

import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from project.data import FolderDataModule
from project.engine.loading.crops import fit_image, random_box, reduced_box
from tests.engine.loading.image_files import noise, pixels, smooth, write_folder

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types
MEAN = [0.485, 0.456, 0.406]
COLOUR = [124, 116, 104]
SHAPES = [(500, 375), (375, 500), (64, 64), (333, 200), (226, 225), (7, 5), (1, 1), (2, 3), (400, 20), (20, 401)]
CROPS = [32, 33, 224]


def preprocessing(fit: Any, crop: int = 32, mean: Any = MEAN) -> Any:
    return {"resize": crop, "crop": crop, "fit": fit, "mean": mean, "std": [0.2, 0.2, 0.2]}


def fitted(image, fit, crop, mean=MEAN):
    found = fit_image(v2.PILToTensor()(image), preprocessing(fit, crop, mean))
    assert (found.dtype, found.shape) == (torch.uint8, (3, crop, crop))
    return found


def require_near(found, expected):
    """Another implementation's tensor or PIL's image has the same values, to within rounding."""
    tensor = isinstance(expected, torch.Tensor)
    other = expected.int().permute(1, 2, 0).numpy() if tensor else pixels(expected)
    most = 1 if tensor else 2  # of two passes torch and PIL round each; torchvision differs from PIL by the same
    assert np.abs(found.permute(1, 2, 0).numpy() - other).max() <= most


def padded_by_pil(image, crop):
    """The longer side at the crop size, the shorter one rounded down, on a canvas of the mean."""
    width, height = (max(1, int(crop * side / max(image.size))) for side in image.size)
    canvas = Image.new("RGB", (crop, crop), tuple(COLOUR))
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    canvas.paste(scaled, ((crop - width) // 2, (crop - height) // 2))
    return canvas


@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1), (1, 1000)], ids=str)
@pytest.mark.parametrize("crop", CROPS)
def test_squash_is_resize_to_a_square(shape, crop):
    image = noise(*shape)
    found = fitted(image, "squash", crop)
    require_near(found, v2.Compose([v2.PILToTensor(), v2.Resize((crop, crop), antialias=True)])(image))
    require_near(found, image.resize((crop, crop), Image.Resampling.BILINEAR))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("crop", CROPS)
def test_pad_is_resize_of_the_longer_side_and_pad(shape, crop):
    image = noise(*shape)
    scaled = v2.Compose([v2.PILToTensor(), v2.Resize(None, max_size=crop, antialias=True)])(image)
    height, width = scaled.shape[1:]
    left, upper = (crop - width) // 2, (crop - height) // 2
    bars = [left, upper, crop - width - left, crop - height - upper]
    found = fitted(image, "pad", crop)
    require_near(found, v2.Pad(bars, fill=COLOUR)(scaled))
    require_near(found, padded_by_pil(image, crop))


@pytest.mark.parametrize("shape", [(1000, 1), (1, 1000), (60000, 2)], ids=str)
def test_what_is_thinner_than_a_pixel_is_a_line_of_one(shape):
    image = noise(*shape)
    found = fitted(image, "pad", 32)
    require_near(found, padded_by_pil(image, 32))
    bars = (found == torch.tensor(COLOUR)[:, None, None]).all(0)
    assert int((~bars).sum()) == 32


@pytest.mark.parametrize("shape", [(1, 600_000), (600_000, 1)], ids=str)
@pytest.mark.parametrize("fit", ["pad", "squash"])
def test_a_panorama_of_any_length_is_fitted_in_little_memory(shape, fit):
    image = smooth(*shape)  # were it widened before it is shortened, it would take 400 MB
    expected = image.resize((1, 224) if shape[0] == 1 else (224, 1), Image.Resampling.BILINEAR)
    expected = padded_by_pil(image, 224) if fit == "pad" else expected.resize((224, 224))
    require_near(fitted(image, fit, 224), expected)


def draws(count, seed=0):
    return torch.rand(count, 10, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fit", ["pad", "squash"])
@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1), (1, 1000)], ids=str)
def test_in_training_a_box_is_a_part_of_the_image_and_all_of_it_where_it_shall_be(shape, fit):
    width, height = shape
    for tries in draws(100):
        left, upper, right, lower = random_box(width, height, tries, (0.08, 1.0), fit)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert random_box(width, height, tries, (1.0, 1.0), fit) == (0, 0, width, height)


def test_a_region_of_a_reduced_image_is_never_empty():
    dice = random.Random(0)
    for _ in range(3000):
        factor = dice.choice([2, 4, 8])
        size = dice.randrange(factor, 200), dice.randrange(factor, 200)
        decoded = torch.empty(3, -(-size[1] // factor), -(-size[0] // factor))
        left, upper = dice.randrange(size[0] - factor + 1), dice.randrange(size[1] - factor + 1)
        box = left, upper, dice.randrange(left + factor, size[0] + 1), dice.randrange(upper + factor, size[1] + 1)
        left, upper, right, lower = reduced_box(box, size, decoded)
        assert 0 <= left < right <= decoded.shape[2]
        assert 0 <= upper < lower <= decoded.shape[1]


def opened(root, fit, **options):
    data = FolderDataModule(str(root), image_size=32, num_workers=0, fit=fit, **options)
    data.setup("validate")
    return data


@pytest.mark.parametrize("fit", ["pad", "squash"])
def test_the_data_module_fits_evaluations_images_and_says_how(tmp_path, fit):
    root = write_folder(tmp_path / "images", {"a": 5, "b": 5}, size=(61, 30))
    data, crops = (opened(root, fit, cache=str(tmp_path / "cache")) for fit in (fit, "crop"))
    assert data.preprocessing["fit"] == fit
    for split in ("val", "test", "train"):
        dataset: Any = data.splits[split]
        for index, file in enumerate(dataset.files):
            with Image.open(file) as image:
                squashed = image.convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
                expected = squashed if fit == "squash" else padded_by_pil(image.convert("RGB"), 32)
            require_near(dataset.image(index), expected)
            require_near(dataset.image(index), expected)  # the second time from the cache, which others share
            assert not torch.equal(crops.splits[split].image(index), dataset.image(index))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("fit", ["pad", "squash"])
def test_training_sees_what_evaluation_does_where_crops_are_whole(tmp_path, fit, cached):
    root = write_folder(tmp_path / "images", {"a": 5, "b": 5}, size=(31, 20))
    cache = str(tmp_path / "cache") if cached else None
    dataset: Any = opened(root, fit, crop_scale=(1.0, 1.0), cache=cache).splits["train"]
    batch = dataset.__getitems__(list(range(len(dataset))))
    assert torch.equal(batch.images, torch.stack([dataset.image(index) for index in range(len(dataset))]))
