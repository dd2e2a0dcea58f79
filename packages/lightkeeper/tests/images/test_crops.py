"""Which part of an image is used: evaluation's against torchvision, training's against torchvision's."""

import functools
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.exact import UserError
from lightkeeper.images import MapDatasetModule
from lightkeeper.images._files import prepare
from lightkeeper.images._preprocessing import (
    fit_image,
    fit_region,
    random_box,
    region_of,
    sufficient_size,
)
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from tests.image_files import (
    decoded,
    noise,
    prepared,
    save,
    smooth,
    write_folder,
)
from tests.stubs import Files, attached, cases

FITS = ["crop", "pad", "squash"]
# torchvision scales floats elsewhere
ROUNDING = 0 if torch.backends.cpu.get_cpu_capability().startswith("AVX") else 1
SHAPES = [
    *((500, 375), (375, 500), (64, 64), (333, 200), (226, 225), (7, 5), (1, 1), (2, 3)),
    *((300, 120), (120, 300), (400, 20), (20, 401)),
]


def preprocessing(fit="crop", crop: int = 32, resize: int = 36):
    resize = resize if fit == "crop" else crop
    mean = [0.485, 0.456, 0.406]
    return {"resize": resize, "crop": crop, "fit": fit, "mean": mean, "std": [0.2, 0.2, 0.2]}


def require_same(pixels, upright, options):
    """Compares pixels with what torchvision makes of an image that PIL has turned upright."""
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (3, options["crop"], options["crop"]))
    assert (pixels.int() - prepared(upright, options).int()).abs().max() <= ROUNDING


@pytest.mark.parametrize(("crop", "resize"), [(32, 36), (33, 33), (224, 256), (21, 100)])
@pytest.mark.parametrize("fit", FITS)
def test_evaluation_is_what_torchvision_makes_of_the_image(fit, crop, resize):
    options = preprocessing(fit, crop, resize)
    for shape in SHAPES:
        require_same(fit_image(v2.PILToTensor()(noise(*shape)), options), noise(*shape), options)


@pytest.mark.parametrize("crop", [(32, 128), (21, 7), (64, 65)], ids=str)
@pytest.mark.parametrize("fit", FITS)
def test_a_rectangle_is_what_torchvision_makes_of_the_image(fit, crop):
    height, width = crop
    options: Any = preprocessing(fit) | {
        "crop": [*crop],
        "resize": [9 * height // 8, 9 * width // 8],
    }
    for shape in SHAPES:
        image = v2.PILToTensor()(noise(*shape))
        size = options["resize"] if fit == "crop" else crop
        factors = size[0] / shape[1], size[1] / shape[0]
        factor = max(factors) if fit == "crop" else min(factors)
        scaled = [max(1, int(side * factor + 1e-9)) for side in (shape[1], shape[0])]
        upper, left = ((whole - side) // 2 for whole, side in zip(crop, scaled, strict=True))
        # bars on both sides, the larger one at the end
        bars = [left, upper, width - scaled[1] - left, height - scaled[0] - upper]
        colour = [round(255 * value) for value in options["mean"]]
        padded = functools.partial(v2.functional.pad, padding=bars, fill=colour)
        steps: Any = {
            "crop": [v2.Resize(scaled), v2.CenterCrop(crop)],
            "squash": [v2.Resize(crop)],
            "pad": [v2.Resize(scaled), padded],
        }[fit]
        ours = fit_image(image, options)
        assert ours.shape == (3, *crop)
        assert (ours.int() - v2.Compose(steps)(image).int()).abs().max() <= ROUNDING


@cases(
    "suffix mode size options",
    *(("jpg", mode, (61, 47), {}) for mode in ("L", "CMYK", "YCbCr")),
    *(("png", mode, (61, 47), {}) for mode in ("1", "L", "LA", "P", "RGBA")),
    *(("tif", mode, (61, 47), {}) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK")),
    *(("webp", mode, (61, 47), {}) for mode in ("L", "RGBA")),
    ("pgm", "L", (61, 47), {}),
    ("jpg", "RGB", (1999, 1501), {}),
    ("jpg", "RGB", (1999, 1501), {"progressive": True}),
    ("jpg", "RGB", (1999, 1501), {"subsampling": 0}),
)
def test_evaluation_decodes_in_full_and_converts_as_pil_does(tmp_path, suffix, mode, size, options):
    image = noise(61, 47).convert(mode).resize(size)
    path = save(image, tmp_path / f"image.{suffix}", **options)
    require_same(prepare(path, preprocessing()), Image.open(path).convert("RGB"), preprocessing())


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("fit", FITS)
def test_the_data_module_serves_evaluation_those_pixels_and_training_where_crops_are_whole(
    tmp_path, fit, cached
):
    size = (61, 45) if fit == "crop" else (31, 20)
    root = write_folder(tmp_path / "images", {"a": 5, "b": 5}, size=size)
    cache = str(tmp_path / "cache") if cached else None
    data = Files(str(root), image_size=32, fit=fit, crop_scale=(1.0, 1.0), cache=cache)
    data.prepare_data()
    data.setup("validate")
    for split in ("val", "test", "train"):
        dataset: Any = data.splits[split]
        for index in 2 * [*range(len(dataset))]:  # the second time from the cache
            image = dataset.image(index)
            require_same(image, Image.open(dataset.path(index)), preprocessing(fit))
            if (split, fit) != ("train", "crop"):
                assert torch.equal(dataset.__getitems__([index]).images[0], image)


def served(root, kind, tmp_path, **options):
    """Preprocessing, the images of an epoch, and images of evaluation."""
    options |= {"seed": 1, "batch_size": 4}
    if kind == "dataset":
        images: Any = ImageFolder(str(root))
        data: Any = MapDatasetModule(images, num_workers=0, **options)
    else:
        data = Files(
            str(root), cache=str(tmp_path / "cache") if kind == "cache" else None, **options
        )
    epoch = torch.cat([batch.images for batch in attached(data).train_dataloader()])
    train, val = data.splits["train"], data.splits["val"]
    seen = [
        *map(train.image, range(3)),
        *map(val.image, range(2)),
        *next(iter(data.val_dataloader())),
    ]
    return data.preprocessing, epoch, seen


KINDS = cases("kind", "files", "cache", "dataset")


@KINDS
@cases("options", {}, {"crop_scale": None}, {"fit": "pad"}, {"fit": "squash", "resize": 40})
def test_training_has_a_size_of_its_own_and_evaluation_keeps_its_own(tmp_path, kind, options):
    root = write_folder(tmp_path / "images", {"a": 16, "b": 16}, size=(61, 45))
    one, large, small = (
        served(root, kind, tmp_path, **options, **sizes)
        for sizes in ({"image_size": 28, "train_size": 21}, {"image_size": 28}, {"image_size": 21})
    )
    assert one[0] == large[0]
    assert torch.equal(one[1], small[1])
    for ours, expected in zip(one[2], large[2], strict=True):
        assert torch.equal(ours, expected)


class OwnSteps(Files):
    """Overrides what the options say."""

    preprocessing = preprocessing(crop=20, resize=24)


def test_training_follows_a_preprocessing_that_a_subclass_overrides(tmp_path):
    root = str(write_folder(tmp_path / "images", {"a": 16, "b": 16}, size=(61, 45)))
    for options, size in (({}, 20), ({"train_size": 10}, 10)):
        data: Any = attached(OwnSteps(root, **options))
        batch = next(iter(data.train_dataloader()))
        assert batch.images.shape == (4, 3, size, size)
        assert data.train_preprocessing[0]["resize"] == size * 24 // 20


@KINDS
@pytest.mark.parametrize("fit", FITS)
def test_files_and_datasets_serve_rectangles_in_training_and_evaluation(tmp_path, kind, fit):
    root = write_folder(tmp_path / "images", {"a": 16, "b": 16}, size=(61, 45))
    sizes: Any = {"image_size": (14, 35), "train_size": (8, 20), "fit": fit}
    steps, epoch, (*seen, images, _, _) = served(root, kind, tmp_path, **sizes)
    assert (steps["crop"], steps["resize"]) == ([14, 35], [16, 40] if fit == "crop" else [14, 35])
    assert epoch.shape[1:] == (3, 8, 20)
    assert images.shape[1:] == (3, 14, 35)
    known = [prepare(file, steps) for file in root.rglob("*.jpg")]
    for image in [*seen, *images]:
        assert sum(torch.equal(image, its) for its in known) == 1
    assert not any(torch.equal(image, its) for image in epoch for its in known)


@KINDS
def test_a_random_interpolation_is_one_of_both_for_each_image_whatever_its_batch(tmp_path, kind):
    root = write_folder(tmp_path / "images", {"a": 16, "b": 16}, size=(61, 45))
    linear, cubic, mixed = (
        served(root, kind, tmp_path, train_interpolation=name)
        for name in ("bilinear", "bicubic", "random")
    )
    assert mixed[0] == linear[0] == cubic[0]
    is_linear = [torch.equal(*pair) for pair in zip(mixed[1], linear[1], strict=True)]
    is_cubic = [torch.equal(*pair) for pair in zip(mixed[1], cubic[1], strict=True)]
    if kind != "cache":  # which is scaled by the first
        assert all(one != other for one, other in zip(is_linear, is_cubic, strict=True))
    assert 4 <= sum(is_linear) <= len(is_linear) - 4
    with pytest.raises(UserError, match="train_interpolation: must be left out"):
        served(root, kind, tmp_path, train_interpolation="random", crop_scale=None)


def draws(count, seed=0):
    return torch.rand(count, 10, 4, generator=torch.Generator().manual_seed(seed))


def torchvisions_boxes(shape, count, scale=(0.08, 1.0), aspect: float = 1):
    image: Any = Image.new("L", shape)
    crop = transforms.RandomResizedCrop
    with torch.random.fork_rng():
        torch.manual_seed(0)
        places = [
            crop.get_params(image, [*scale], [3 / 4 * aspect, 4 / 3 * aspect]) for _ in range(count)
        ]
    return [(left, upper, left + width, upper + height) for upper, left, height, width in places]


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.6), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("fit", FITS)
def test_a_random_box_lies_inside(scale, fit):
    for (width, height), tries in product([*SHAPES, (1000, 1)], draws(100)):
        left, upper, right, lower = box = random_box(width, height, tries, scale, fit)
        assert all(isinstance(edge, int) for edge in box)
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        assert fit == "crop" or scale != (1.0, 1.0) or box == (0, 0, width, height)


@pytest.mark.parametrize("shape", [(1000, 20), (20, 1000)], ids=str)
def test_a_panorama_gets_torchvisions_central_box(shape):
    width, height = shape
    expected = {*torchvisions_boxes(shape, 1)}
    assert {random_box(width, height, tries, (0.08, 1.0)) for tries in draws(20)} == expected


@pytest.mark.parametrize("fit", ["crop", "squash"])
@cases(
    "shape scale",
    *((shape, (0.08, 1.0)) for shape in ((500, 375), (200, 200), (150, 400))),
    ((500, 375), (0.5, 0.6)),
)
@pytest.mark.parametrize("aspect", [1, 2.5])
def test_random_boxes_are_distributed_as_torchvisions_of_the_squashed_image_too(
    shape, scale, fit, aspect
):
    count = 3000
    boxed = aspect if fit == "crop" else 1  # of a squashed image, aspects are its own
    square = (400, 400) if fit == "squash" else shape
    stretch = np.array([*square, *square]) / np.array([*shape, *shape])
    width, height = shape
    boxes = [random_box(width, height, tries, scale, fit, aspect) for tries in draws(count)]
    ours = np.array(boxes) * stretch
    theirs = np.array(torchvisions_boxes(square, count, scale, boxed), dtype=float)
    error = np.sqrt((ours.var(0) + theirs.var(0)) / count)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error + 0.5 * stretch).all()
    assert np.allclose(ours.std(0), theirs.std(0), rtol=0.08)
    assert (ours.min(0)[:2] == 0).all()
    assert (ours.max(0)[2:] == square).all()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("fit", ["pad", "squash"])
@pytest.mark.parametrize(
    "box", [(0, 0, 800, 600), (104, 48, 704, 592), (304, 32, 512, 296)], ids=str
)
def test_training_decodes_a_large_jpeg_small_with_nearly_the_same_pixels(tmp_path, mode, box, fit):
    options = preprocessing(fit, 48)
    path = save(smooth(800, 600).convert(mode), tmp_path / "image.jpg", quality=95)
    small = decoded(path, sufficient_size((800, 600), box, options))
    assert small.shape[2] < 800
    pixels = fit_region(region_of(small, box, (800, 600)), options)
    expected = prepared(Image.open(path).convert("RGB").crop(box), options)
    assert (pixels.int() - expected.int()).abs().float().mean() < 3


def test_a_region_of_a_reduced_image_is_never_empty():
    for factor, width in product((2, 4, 8), range(8, 60)):
        small = torch.empty(3, -(-width // factor), -(-width // factor))
        for left in range(width - factor + 1):
            box = (left, left, left + factor, left + factor)
            assert region_of(small, box, (width, width)).numel()
