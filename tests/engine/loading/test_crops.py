"""Which part of an image is used: evaluation's against torchvision and PIL, training's against torchvision's."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from project.data import FolderDataModule
from project.engine.loading.crops import centre_crop, random_box, reduced_box, scaled_region, sufficient_size
from project.engine.loading.decode import decode, open_image
from tests.engine.loading.image_files import centre, difference, noise, pixels, save, smooth, write_folder

v2: Any = import_module("torchvision.transforms.v2")  # its names are not declared for types
SHAPES = [(500, 375), (375, 500), (64, 64), (333, 200), (40, 30)]
ODD_SHAPES = [*SHAPES, (1000, 20), (20, 1000), (300, 120), (120, 300), (7, 5), (1, 1), (3, 200), (2, 2)]
SIZES = [(36, 32), (32, 32), (256, 224), (100, 21)]


def by_torchvision(image, resize, crop):
    """What v2's transforms make of the pixels, uint8 (3, crop, crop)."""
    return v2.Compose([v2.PILToTensor(), v2.Resize(resize, antialias=True), v2.CenterCrop(crop)])(image)


def by_pil(image, resize, crop):
    """The same by PIL's own scaling, int64 (crop, crop, 3)."""
    width, height = (int(resize * side / min(image.size)) for side in image.size)
    left, upper = round((width - crop) / 2), round((height - crop) / 2)
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return pixels(scaled.crop((left, upper, left + crop, upper + crop)))


def require_same(found, upright, resize, crop):
    """The whole promise, for an image that PIL has turned upright."""
    assert (found.dtype, found.shape) == (torch.uint8, (3, crop, crop))
    assert (found.int() - by_torchvision(upright, resize, crop).int()).abs().max() <= 1
    assert np.abs(found.permute(1, 2, 0).numpy() - by_pil(upright, resize, crop)).max() <= 1


@pytest.mark.parametrize("shape", [*ODD_SHAPES, (341, 257), (257, 341), (226, 225), (225, 224)], ids=str)
@pytest.mark.parametrize(("resize", "crop"), SIZES)
def test_evaluation_is_resize_and_centre_crop(tmp_path, shape, resize, crop):
    image = noise(*shape)
    require_same(centre(save(image, tmp_path / "image.png"), resize, crop), image, resize, crop)


@pytest.mark.parametrize("shape", [(341, 257), (500, 333), (224, 224), (7, 5)], ids=str)
def test_but_for_a_panorama_it_is_torchvisions_to_the_last_bit(shape):
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("torchvision scales floats on this processor")
    image = noise(*shape)
    found = centre_crop(v2.PILToTensor()(image), 256, 224)
    assert torch.equal(found, by_torchvision(image, 256, 224))


@pytest.mark.parametrize("shape", [(3000, 2000), (1999, 3001)], ids=str)
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}], ids=str)
def test_evaluation_decodes_a_large_jpeg_in_full(tmp_path, shape, options):
    path = save(noise(97, 61).resize(shape), tmp_path / "image.jpg", **options)
    require_same(centre(path, 256, 224), Image.open(path), 256, 224)


@pytest.mark.parametrize(
    ("suffix", "mode"),
    [
        *(("jpg", mode) for mode in ("L", "CMYK", "YCbCr")),
        *(("png", mode) for mode in ("1", "L", "LA", "P", "RGBA")),
        *(("tif", mode) for mode in ("1", "L", "LA", "P", "RGBA", "CMYK")),
        *(("webp", mode) for mode in ("L", "RGBA")),
    ],
)
def test_evaluation_converts_as_pil_does(tmp_path, suffix, mode):
    path = save(noise(61, 47).convert(mode), tmp_path / f"image.{suffix}")
    require_same(centre(path, 36, 32), Image.open(path).convert("RGB"), 36, 32)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_evaluation_keeps_the_upper_half_of_16_bits(tmp_path, suffix):
    values = np.random.default_rng(0).integers(0, 2**16, (47, 61), dtype=np.uint16)
    path = save(Image.fromarray(values), tmp_path / f"image.{suffix}")
    require_same(centre(path, 36, 32), Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB"), 36, 32)


def test_a_panorama_of_any_length_is_read_in_the_memory_of_its_crop(tmp_path):
    path = save(noise(60000, 2), tmp_path / "image.png")  # at a height of 256 pixels, it would take 6 GB
    found = centre(path, 256, 224)
    middle = Image.open(path).crop((29500, 0, 30500, 2))
    assert np.abs(found.permute(1, 2, 0).numpy() - by_pil(middle, 256, 224)).max() <= 1


@pytest.mark.parametrize("cached", [False, True])
def test_the_data_module_serves_evaluation_those_pixels(tmp_path, cached):
    root = write_folder(tmp_path / "images", {"a": 5, "b": 5}, size=(301, 203))
    cache = str(tmp_path / "cache") if cached else None
    data = FolderDataModule(str(root), image_size=32, num_workers=0, cache=cache)
    data.setup("validate")
    for split in ("val", "test"):
        dataset: Any = data.splits[split]
        for _ in range(2):
            batch = dataset.__getitems__(list(range(len(dataset))))
            for index, image in enumerate(batch.images):
                require_same(image, Image.open(dataset.files[index]), 36, 32)
                assert torch.equal(dataset.image(index), image)
    training: Any = data.splits["train"]
    require_same(training.image(0), Image.open(training.files[0]), 36, 32)  # as notebooks and TensorBoard show it


def draws(count, tries=10, seed=0):
    return torch.rand(count, tries, 4, generator=torch.Generator().manual_seed(seed))


def torchvisions_box(shape):
    """Upper and left edge, height and width."""
    image: Any = Image.new("L", shape)
    return transforms.RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])


@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.6), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
def test_a_random_box_lies_inside_and_has_a_usual_shape(shape, scale):
    width, height = shape
    for tries in draws(200):
        left, upper, right, lower = random_box(width, height, tries, scale)
        assert all(isinstance(edge, int) for edge in (left, upper, right, lower))
        assert 0 <= left < right <= width
        assert 0 <= upper < lower <= height
        w, h = right - left, lower - upper
        # before rounding to pixels
        assert (w + 0.5) / (h - 0.5) >= 3 / 4
        assert (w - 0.5) / (h + 0.5) <= 4 / 3
        assert (w - 0.5) * (h - 0.5) <= scale[1] * width * height


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_random_box_reaches_every_corner(shape):
    width, height = shape
    for x, y in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        tries = draws(50)
        tries[:, :, 2:] = (1 - 2.0**-24) * torch.tensor([x, y])
        for one in tries:
            left, upper, right, lower = random_box(width, height, one, (0.1, 0.3))
            assert right == width if x else left == 0
            assert lower == height if y else upper == 0


@pytest.mark.parametrize("shape", [(1000, 20), (20, 1000), (600, 30)], ids=str)
def test_a_panorama_gets_torchvisions_central_box(shape):
    upper, left, height, width = torchvisions_box(shape)
    for tries in draws(20):
        assert random_box(shape[0], shape[1], tries, (0.08, 1.0)) == (left, upper, left + width, upper + height)


@pytest.mark.parametrize("shape", [(500, 375), (200, 200), (150, 400)], ids=str)
def test_random_boxes_are_distributed_as_torchvisions(shape):
    count = 3000
    ours = [random_box(shape[0], shape[1], tries, (0.08, 1.0)) for tries in draws(count)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = [torchvisions_box(shape) for _ in range(count)]
    measures = np.array([(le, up, r - le, lo - up) for le, up, r, lo in ours], dtype=float)
    reference = np.array([(left, upper, width, height) for upper, left, height, width in theirs], dtype=float)
    error = np.sqrt((measures.var(0) + reference.var(0)) / count)
    assert (np.abs(measures.mean(0) - reference.mean(0)) < 4 * error + 0.5).all()
    assert np.allclose(measures.std(0), reference.std(0), rtol=0.08)


def region(path, box, crop):
    """A region of a file, as training decodes and scales it, and what was decoded."""
    with open_image(path) as image:
        decoded = decode(image, path, sufficient_size(image.size, box, (crop, crop)))
        return scaled_region(decoded, reduced_box(box, image.size, decoded), (crop, crop)), decoded


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("box", [(0, 0, 800, 600), (100, 50, 700, 590), (301, 33, 512, 300)], ids=str)
def test_training_decodes_a_large_jpeg_small_with_nearly_the_same_pixels(tmp_path, mode, box):
    path = save(smooth(800, 600).convert(mode), tmp_path / "image.jpg", quality=95)
    found, decoded = region(path, box, 48)
    expected = Image.open(path).convert("RGB").resize((48, 48), Image.Resampling.BILINEAR, box=box)
    assert decoded.shape[2] < 800
    assert difference(found, expected).mean() < 1.5


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("box", [(0, 0, 300, 200), (37, 21, 201, 150)], ids=str)
def test_training_uses_all_pixels_where_there_are_none_to_spare(tmp_path, suffix, box):
    path = save(noise(300, 200), tmp_path / f"image.{suffix}")
    expected = Image.open(path).crop(box).resize((128, 128), Image.Resampling.BILINEAR)
    assert difference(region(path, box, 128)[0], expected).max() <= 1
