"""Image files as they really are: each is decoded as PIL decodes it, or refused by its name."""

import contextlib
import random
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from project.engine.errors import UnreadableFileError, UserError
from project.engine.loading.decode import MAX_PIXELS, check_image, decode, open_image, upright_size
from tests.engine.loading.image_files import (
    centre,
    centre_of,
    claiming_gif,
    claiming_png,
    cut_before_the_end,
    difference,
    noise,
    pixels,
    png_chunk,
    save,
    smooth,
)

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


@pytest.mark.parametrize(
    ("suffix", "trailing"), [*((suffix, b"") for suffix in SUFFIXES), ("jpg", b"\0" * 40), ("png", b"garbage" * 100)]
)
def test_a_good_file_is_accepted_with_something_after_its_end_too(tmp_path, suffix, trailing):
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
    "content", [b"", b"<html>not found</html>", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"]
)
@pytest.mark.parametrize("read", [check_image, open_image])
def test_what_is_no_image_is_refused_by_name(tmp_path, content, read):
    path = tmp_path / "rose.jpg"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"rose\.jpg' cannot be read as an image \(not an image\)"):
        read(path)


@pytest.mark.parametrize("read", [check_image, open_image])
@pytest.mark.parametrize(("target", "why"), [("nowhere", "No such file"), ("rose.jpg", "Too many levels of symbolic")])
def test_a_link_that_leads_nowhere_is_refused_by_name(tmp_path, read, target, why):
    (tmp_path / "rose.jpg").symlink_to(target)
    with pytest.raises(UnreadableFileError, match=rf"rose\.jpg' cannot be read as an image \({why}"):
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
        except UnreadableFileError:
            refused += 1
    assert refused > 0


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_of_several_frames_or_pages_the_first_is_used(tmp_path, suffix):
    first, *others = (smooth(64, 48).rotate(angle) for angle in (0, 90, 180))
    path = save(first, tmp_path / f"image.{suffix}", save_all=True, append_images=others)
    check_image(path)
    assert difference(centre(path), centre_of(first, 36, 32)).mean() < 8
    assert difference(centre(path), centre_of(others[1], 36, 32)).mean() > 40


@pytest.mark.parametrize("claim", [claiming_png, claiming_gif])
@pytest.mark.parametrize("size", [(60000, 60000), (MAX_PIXELS // 10000 + 1, 10000)], ids=str)
@pytest.mark.parametrize("read", [check_image, open_image])
def test_a_file_that_claims_too_many_pixels_is_refused_by_its_header(tmp_path, claim, size, read):
    path = tmp_path / "bomb.png"
    path.write_bytes(claim(*size))
    with pytest.raises(UserError, match=r"bomb\.png' cannot be read as an image \(Image size \(\d+ pixels\) exceeds"):
        read(path)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt"])
@pytest.mark.parametrize("before", [True, False], ids=["before the pixels", "behind them"])
def test_text_that_unpacks_to_gigabytes_is_refused_or_skipped_in_little_memory(tmp_path, kind, before):
    packed = zlib.compress(bytes(2**28), 9)
    text = png_chunk(kind, b"note\0\0" + packed if kind == b"zTXt" else b"note\0\1\0\0\0" + packed)
    data = save(smooth(40, 32), tmp_path / "bomb.png").read_bytes()
    place = data.index(b"IDAT" if before else b"IEND") - 4
    (tmp_path / "bomb.png").write_bytes(data[:place] + text + data[place:])
    tracemalloc.start()
    try:
        with contextlib.suppress(UnreadableFileError):
            centre(tmp_path / "bomb.png")
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("mode", ["F", "I"])
@pytest.mark.parametrize("read", [check_image, open_image])
def test_pixels_of_32_bits_are_refused_rather_than_cut_off(tmp_path, mode, read):
    path = save(smooth(64, 48).convert(mode), tmp_path / "image.tif")
    with pytest.raises(UserError, match="32 bits"):
        read(path)


@pytest.mark.parametrize(
    ("suffix", "mode", "options"),
    [
        ("jpg", "RGB", {}),
        ("jpg", "RGB", {"progressive": True}),
        ("jpg", "L", {}),
        ("jpg", "CMYK", {}),
        ("webp", "RGB", {}),
        ("webp", "RGB", {"lossless": True, "method": 0}),
    ],
)
def test_a_file_that_was_cut_but_ends_as_it_should_is_never_accepted(tmp_path, suffix, mode, options):
    photo = (
        np.asarray(smooth(200, 150)) // 2 + np.asarray(noise(200, 150)) // 4
    )  # all of the file's bytes say something
    path = save(Image.fromarray(photo.astype(np.uint8)).convert(mode), tmp_path / f"image.{suffix}", **options)
    data = path.read_bytes()
    for seed in range(60):
        path.write_bytes(cut_before_the_end(data, random.Random(seed)))
        with pytest.raises(UnreadableFileError), open_image(path) as image:
            decode(image, path)
