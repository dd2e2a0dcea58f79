import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, InterpolationMode, RandomResizedCrop, Resize

from project.data.decode import centre_box, check_image, crop_and_resize, open_image, random_box
from project.errors import UserError
from tests.data.image_files import centre, centre_of, difference, noise, pixels, save, smooth

SHAPES = [(500, 375), (375, 500), (64, 64), (333, 200), (40, 30)]
ODD_SHAPES = [*SHAPES, (1000, 20), (20, 1000), (300, 120), (120, 300), (7, 5), (1, 1), (3, 200), (2, 2)]
SUFFIXES = ["jpg", "png", "bmp", "gif", "ppm", "tif", "webp"]
UPRIGHT: dict[int, Any] = {
    1: lambda image: image,
    2: np.fliplr,
    3: lambda image: np.rot90(image, 2),
    4: np.flipud,
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: np.rot90(image, 2).transpose(1, 0, 2),
    8: np.rot90,
}


def draws(count, tries=10, seed=0):
    return torch.rand(count, tries, 4, generator=torch.Generator().manual_seed(seed))


def torchvisions_box(shape):
    """Upper and left edge, height and width."""
    image: Any = Image.new("L", shape)
    return RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("resize", "crop"), [(36, 32), (32, 32), (256, 224), (100, 20)])
def test_the_centre_crop_agrees_with_torchvision(tmp_path, shape, resize, crop):
    path = save(smooth(*shape), tmp_path / "image.png")
    found = centre(path, resize, crop)
    steps = Resize(resize, InterpolationMode.BILINEAR, antialias=True), CenterCrop(crop)
    off = difference(found, steps[1](steps[0](Image.open(path))))
    assert (found.shape, found.dtype) == ((3, crop, crop), torch.uint8)
    assert off.mean() < 3  # torchvision rounds the scaled image and the crop to whole pixels
    assert np.quantile(off, 0.99) < 10


@pytest.mark.parametrize("shape", ODD_SHAPES, ids=str)
@pytest.mark.parametrize(("resize", "crop"), [(256, 224), (224, 224)])
def test_the_centre_box_is_central_and_inside(shape, resize, crop):
    width, height = shape
    left, upper, right, lower = centre_box(width, height, resize, crop)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    assert right - left == pytest.approx(lower - upper) == pytest.approx(min(shape) * crop / resize)
    assert ((left + right) / 2, (upper + lower) / 2) == pytest.approx((width / 2, height / 2))


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
def test_a_random_box_has_the_wanted_share_of_the_area(shape):
    width, height = shape
    for tries in draws(200):
        left, upper, right, lower = random_box(width, height, tries, (0.3, 0.4))
        assert (right - left - 0.5) * (lower - upper - 0.5) <= 0.4 * width * height
        assert (right - left + 0.5) * (lower - upper + 0.5) >= 0.3 * width * height


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


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_an_image_is_turned_the_way_its_exif_data_say(tmp_path, suffix, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(smooth(48, 32), tmp_path / f"image.{suffix}", exif=exif)
    stored = pixels(Image.open(path))
    assert (pixels(open_image(path)) == UPRIGHT[orientation](stored)).all()
    upright = Image.fromarray(np.ascontiguousarray(UPRIGHT[orientation](stored)).astype(np.uint8))
    assert difference(centre(path, 18, 16), centre_of(upright, 18, 16)).mean() < 2


def sixteen_bits(image):
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def half_transparent(image):
    image = image.copy()
    image.putalpha(128)
    return image


@pytest.mark.parametrize(
    ("convert", "suffix", "tolerance"),
    [
        pytest.param(lambda image: image.convert("L"), "png", 1, id="grey PNG"),
        pytest.param(lambda image: image.convert("L"), "jpg", 3, id="grey JPEG"),
        pytest.param(lambda image: image.convert("LA"), "png", 1, id="grey with alpha"),
        pytest.param(sixteen_bits, "png", 1, id="16-bit grey PNG"),
        pytest.param(sixteen_bits, "tif", 1, id="16-bit grey TIFF"),
    ],
)
def test_an_image_in_grey_comes_out_as_rgb(tmp_path, convert, suffix, tolerance):
    path = save(convert(smooth(64, 48)), tmp_path / f"image.{suffix}")
    found = centre(path)
    assert found.shape == (3, 32, 32)
    assert (found == found[0]).all()
    assert difference(found, centre_of(smooth(64, 48).convert("L"), 36, 32)).mean() < tolerance


@pytest.mark.parametrize(
    ("convert", "suffix", "options", "tolerance"),
    [
        pytest.param(lambda image: image.quantize(256), "png", {}, 8, id="palette"),
        pytest.param(lambda image: image.quantize(256), "gif", {}, 8, id="GIF"),
        pytest.param(
            lambda image: image.quantize(256), "png", {"transparency": 3}, 8, id="palette with a transparent colour"
        ),
        pytest.param(
            lambda image: image.quantize(256),
            "png",
            {"transparency": bytes(range(256))},
            8,
            id="palette with half-transparent colours",
        ),
        pytest.param(half_transparent, "png", {}, 1, id="RGBA"),
        pytest.param(lambda image: image.convert("CMYK"), "jpg", {}, 4, id="CMYK JPEG"),
        pytest.param(lambda image: image.convert("CMYK"), "tif", {}, 2, id="CMYK TIFF"),
    ],
)
def test_an_image_in_colour_comes_out_as_rgb(tmp_path, convert, suffix, options, tolerance):
    path = save(convert(smooth(64, 48)), tmp_path / f"image.{suffix}", **options)
    found = centre(path)
    assert found.shape == (3, 32, 32)
    assert difference(found, centre_of(smooth(64, 48), 36, 32)).mean() < tolerance


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("box", [(0, 0, 800, 600), (100, 50, 700, 590), (301, 33, 512, 300)], ids=str)
def test_a_large_jpeg_is_decoded_small_with_nearly_the_same_pixels(tmp_path, mode, box):
    path = save(smooth(800, 600).convert(mode), tmp_path / "image.jpg", quality=95)
    image = open_image(path)
    found = crop_and_resize(image, box, 48, path)
    expected = Image.open(path).convert("RGB").resize((48, 48), Image.Resampling.BILINEAR, box=box)
    assert image.size[0] < 800
    assert difference(found, expected).mean() < 1.5


@pytest.mark.parametrize("box", [(0, 0, 300, 200), (37, 21, 201, 150)], ids=str)
def test_a_jpeg_without_pixels_to_spare_is_decoded_as_it_is(tmp_path, box):
    path = save(noise(300, 200), tmp_path / "image.jpg")
    expected = Image.open(path).convert("RGB").resize((128, 128), Image.Resampling.BILINEAR, box=box)
    assert difference(crop_and_resize(open_image(path), box, 128, path), expected).max() == 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_good_file_is_accepted(tmp_path, suffix):
    path = save(smooth(64, 48), tmp_path / f"image.{suffix}")
    check_image(path)
    assert centre(path).shape == (3, 32, 32)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("trailing", [b"\0", b"\0" * 40, b"garbage" * 100])
def test_a_good_file_with_something_after_its_end_is_accepted(tmp_path, suffix, trailing):
    path = save(smooth(64, 48), tmp_path / f"image.{suffix}")
    path.write_bytes(path.read_bytes() + trailing)
    check_image(path)
    assert centre(path).shape == (3, 32, 32)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of an image that cannot be opened
@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp"])
@pytest.mark.parametrize("read", [check_image, centre])
def test_a_file_cut_short_anywhere_is_refused_by_name(tmp_path, suffix, read):
    path = save(noise(64, 48), tmp_path / f"image of a rose.{suffix}")
    data = path.read_bytes()
    for length in np.linspace(1, 0.97 * len(data), 25).astype(int):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"image of a rose\.\w+' cannot be read as an image \(.+\); repair"):
            read(path)


@pytest.mark.parametrize(
    "content", [b"", b"this is text\n" * 30, b"<html>not found</html>"], ids=["empty", "text", "html"]
)
@pytest.mark.parametrize("read", [check_image, open_image])
def test_what_is_no_image_is_refused_by_name(tmp_path, content, read):
    path = tmp_path / "rose.jpg"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"rose\.jpg' cannot be read as an image \(not an image\)"):
        read(path)


@pytest.mark.parametrize("read", [check_image, open_image])
def test_a_file_that_is_gone_is_refused_by_name(tmp_path, read):
    with pytest.raises(UserError, match=r"rose\.jpg"):
        read(tmp_path / "rose.jpg")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # on the damage that it gets over
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of an image that cannot be opened
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("read", [check_image, centre])
def test_a_damaged_file_gives_an_image_or_our_own_error(tmp_path, suffix, read):
    path = save(smooth(40, 32), tmp_path / f"image.{suffix}")
    data, dice = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 5)):
            damaged[dice.randrange(min(len(data), 300))] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except UserError:
            refused += 1
    assert refused > 0
