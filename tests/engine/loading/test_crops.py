"""Which part of an image is used: evaluation's against torchvision and PIL, training's against torchvision's."""

import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from project.engine.loading.crops import (
    fit_image,
    fit_region,
    random_box,
    reduced_box,
    sufficient_size,
)
from project.engine.loading.files import prepare
from tests.engine.loading.image_files import (
    decoded,
    difference,
    noise,
    prepared,
    save,
    smooth,
    write_folder,
)
from tests.engine.loading.stubs import Files, cases

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types
MEAN, COLOUR = [0.485, 0.456, 0.406], [124, 116, 104]
FITS = ["crop", "pad", "squash"]
ROUNDING = (
    0 if torch.backends.cpu.get_cpu_capability().startswith("AVX") else 1
)  # torchvision scales floats elsewhere
SHAPES = [
    (500, 375),
    (375, 500),
    (64, 64),
    (333, 200),
    (226, 225),
    (7, 5),
    (1, 1),
    (2, 3),
    (300, 120),
    (120, 300),
]
SHAPES += [(400, 20), (20, 401)]


def preprocessing(fit, crop: int = 32, resize: int = 36):
    return {
        "resize": resize if fit == "crop" else crop,
        "crop": crop,
        "fit": fit,
        "mean": MEAN,
        "std": [0.2, 0.2, 0.2],
    }


def by_pil(image, fit, crop, resize):
    if fit == "squash":
        return image.resize((crop, crop), Image.Resampling.BILINEAR)
    if fit == "crop":
        width, height = (int(resize * side / min(image.size)) for side in image.size)
        left, upper = round((width - crop) / 2), round((height - crop) / 2)
        return image.resize((width, height), Image.Resampling.BILINEAR).crop(
            (left, upper, left + crop, upper + crop)
        )
    width, height = (max(1, int(crop * side / max(image.size))) for side in image.size)
    canvas = Image.new("RGB", (crop, crop), tuple(COLOUR))
    canvas.paste(
        image.resize((width, height), Image.Resampling.BILINEAR),
        ((crop - width) // 2, (crop - height) // 2),
    )
    return canvas


def require_same(found, upright, fit="crop", crop=32, resize=36):
    """The whole promise, for an image that PIL has turned upright: torchvision's pixels, and about PIL's."""
    assert (found.dtype, found.shape) == (torch.uint8, (3, crop, crop))
    assert (
        found.int() - prepared(upright, preprocessing(fit, crop, resize)).int()
    ).abs().max() <= ROUNDING
    most = (
        1 if fit == "crop" else 2
    )  # of two passes torch and PIL round each; torchvision differs from PIL by the same
    assert difference(found, by_pil(upright, fit, crop, resize)).max() <= most


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("crop", "resize"), [(32, 36), (33, 33), (224, 256), (21, 100)])
@pytest.mark.parametrize("fit", FITS)
def test_evaluation_is_what_torchvision_and_pil_make_of_the_image(shape, fit, crop, resize):
    image = noise(*shape)
    found = fit_image(v2.PILToTensor()(image), preprocessing(fit, crop, resize))
    require_same(found, image, fit, crop, resize)


@pytest.mark.parametrize(
    "shape", [(1000, 1), (1, 1000)], ids=str
)  # torchvision would scale it to no pixels
def test_a_line_is_padded(shape):
    found = fit_image(v2.PILToTensor()(noise(*shape)), preprocessing("pad", 224))
    assert difference(found, by_pil(noise(*shape), "pad", 224, 224)).max() <= 2


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
def test_evaluation_decodes_a_large_jpeg_in_full(tmp_path, options):
    path = save(noise(97, 61).resize((1999, 1501)), tmp_path / "image.jpg", **options)
    require_same(
        prepare(path, preprocessing("crop", 224, 256)), Image.open(path), crop=224, resize=256
    )


@cases(
    "suffix modes",
    ("jpg", ("L", "CMYK", "YCbCr")),
    ("png", ("1", "L", "LA", "P", "RGBA")),
    ("tif", ("1", "L", "LA", "P", "RGBA", "CMYK")),
    ("webp", ("L", "RGBA")),
    ("pgm", ("L",)),
)
def test_evaluation_converts_as_pil_does_and_keeps_the_upper_half_of_16_bits(
    tmp_path, suffix, modes
):
    for mode in modes:
        path = save(noise(61, 47).convert(mode), tmp_path / f"{mode}.{suffix}")
        require_same(prepare(path, preprocessing("crop")), Image.open(path).convert("RGB"))
    if suffix in ("png", "tif", "pgm"):
        values = np.random.default_rng(0).integers(0, 2**16, (47, 61), dtype=np.uint16)
        path = save(Image.fromarray(values), tmp_path / f"deep.{suffix}")
        grey = Image.fromarray((values >> 8).astype(np.uint8))
        require_same(prepare(path, preprocessing("crop")), grey.convert("RGB"))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("fit", FITS)
def test_the_data_module_serves_evaluation_those_pixels_and_training_where_crops_are_whole(
    tmp_path, fit, cached
):
    root = write_folder(
        tmp_path / "images", {"a": 5, "b": 5}, size=(61, 45) if fit == "crop" else (31, 20)
    )
    cache = str(tmp_path / "cache") if cached else None
    data = Files(root, image_size=32, fit=fit, crop_scale=(1.0, 1.0), cache=cache)
    data.prepare_data()
    data.setup("validate")
    assert data.preprocessing["fit"] == fit
    for split in ("val", "test", "train"):
        dataset: Any = data.splits[split]
        for _ in range(2):  # the second time from the cache
            batch = dataset.__getitems__(list(range(len(dataset))))
            for index, image in enumerate(batch.images):
                require_same(dataset.image(index), Image.open(dataset.files[index]), fit)
                assert torch.equal(dataset.image(index), image) or (split, fit) == ("train", "crop")


def draws(count, seed=0):
    return torch.rand(count, 10, 4, generator=torch.Generator().manual_seed(seed))


def torchvisions_boxes(shape, count):
    image: Any = Image.new("L", shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = [
            transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            for _ in range(count)
        ]
    return [(left, upper, left + width, upper + height) for upper, left, height, width in found]


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.6), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (1000, 1)], ids=str)
@pytest.mark.parametrize("fit", FITS)
def test_a_random_box_lies_inside_and_has_a_usual_shape(shape, scale, fit):
    width, height = shape
    for tries in draws(100):
        left, upper, right, lower = box = random_box(width, height, tries, scale, fit)
        assert all(isinstance(edge, int) for edge in box)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        if fit != "crop":
            assert scale != (1.0, 1.0) or box == (0, 0, width, height)
            continue
        w, h = right - left, lower - upper
        assert (w + 0.5) / (h - 0.5) >= 3 / 4  # before rounding to pixels
        assert (w - 0.5) / (h + 0.5) <= 4 / 3
        assert (w - 0.5) * (h - 0.5) <= scale[1] * width * height


def test_a_random_box_reaches_every_corner():
    for x, y in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        tries = draws(50)
        tries[:, :, 2:] = (1 - 2.0**-24) * torch.tensor([x, y])
        for one in tries:
            left, upper, right, lower = random_box(500, 375, one, (0.1, 0.3))
            assert right == 500 if x else left == 0
            assert lower == 375 if y else upper == 0


@pytest.mark.parametrize("shape", [(1000, 20), (20, 1000)], ids=str)
def test_a_panorama_gets_torchvisions_central_box(shape):
    (expected,), (width, height) = torchvisions_boxes(shape, 1), shape
    assert {random_box(width, height, tries, (0.08, 1.0)) for tries in draws(20)} == {expected}


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("shape", [(500, 375), (200, 200), (150, 400)], ids=str)
def test_random_boxes_are_distributed_as_torchvisions_of_the_squashed_image_too(shape, fit):
    count, square = 3000, (400, 400)
    width, height = shape
    scale = (
        np.array([*square, *square]) / np.array([*shape, *shape]) if fit == "squash" else np.ones(4)
    )
    ours = (
        np.array([random_box(width, height, tries, (0.08, 1.0), fit) for tries in draws(count)])
        * scale
    )
    theirs = np.array(torchvisions_boxes(square if fit == "squash" else shape, count), dtype=float)
    error = np.sqrt((ours.var(0) + theirs.var(0)) / count)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error + 0.5 * scale).all()
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.08)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("fit", ["pad", "squash"])
@pytest.mark.parametrize(
    "box", [(0, 0, 800, 600), (104, 48, 704, 592), (304, 32, 512, 296)], ids=str
)
def test_training_decodes_a_large_jpeg_small_with_nearly_the_same_pixels(tmp_path, mode, box, fit):
    options, size = preprocessing(fit, 48), (800, 600)
    path = save(smooth(*size).convert(mode), tmp_path / "image.jpg", quality=95)
    small = decoded(path, sufficient_size(size, box, options))
    assert small.shape[2] < 800
    found = fit_region(small, reduced_box(box, size, small), options)
    assert (
        difference(found, by_pil(Image.open(path).convert("RGB").crop(box), fit, 48, 48)).mean() < 3
    )


def test_a_region_of_a_reduced_image_is_never_empty():
    dice = random.Random(0)
    for _ in range(3000):
        factor = dice.choice([2, 4, 8])
        size = dice.randrange(factor, 200), dice.randrange(factor, 200)
        small = torch.empty(3, -(-size[1] // factor), -(-size[0] // factor))
        left, upper = dice.randrange(size[0] - factor + 1), dice.randrange(size[1] - factor + 1)
        box = (
            left,
            upper,
            dice.randrange(left + factor, size[0] + 1),
            dice.randrange(upper + factor, size[1] + 1),
        )
        left, upper, right, lower = reduced_box(box, size, small)
        assert 0 <= left < right <= small.shape[2]
        assert 0 <= upper < lower <= small.shape[1]
