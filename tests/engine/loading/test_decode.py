import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from project.engine.errors import UserError
from project.engine.loading.decode import check_image, decode, open_image, upright_size
from tests.engine.loading.image_files import centre, centre_of, difference, noise, pixels, save, smooth

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


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_an_image_is_turned_the_way_its_exif_data_say(tmp_path, suffix, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(smooth(48, 32), tmp_path / f"image.{suffix}", exif=exif)
    stored = pixels(Image.open(save(smooth(48, 32), tmp_path / f"plain.{suffix}")))
    with open_image(path) as image:
        assert upright_size(image, path) == ((32, 48) if orientation > 4 else (48, 32))
        found = decode(image, path)
    assert (found.permute(1, 2, 0).numpy() == UPRIGHT[orientation](stored)).all()


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
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_as_pil_does(tmp_path, mode, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(smooth(803, 601).convert(mode), tmp_path / "image.jpg", exif=exif)
    for fraction in (1, 2, 4, 8):
        least = 803 // fraction, 601 // fraction
        with Image.open(path) as image:
            image.draft("RGB", least)
            expected = UPRIGHT[orientation](pixels(image))
        with open_image(path) as image:
            found = decode(image, path, least[::-1] if orientation == 6 else least)
        assert (found.permute(1, 2, 0).numpy() == expected).all()


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
