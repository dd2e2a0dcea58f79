"""Image files as they really are: each is decoded as PIL decodes it, or refused by its name."""

import os
import random
import re
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from lightkeeper.exact._errors import UnreadableFileError
from lightkeeper.images import FileDataset, Preprocessing
from lightkeeper.images._decode import check_image, read_bands
from lightkeeper.images._layout import cpu_limit
from PIL import Image, ImageOps

from tests.image_files import decoded, difference, noise, save, smooth, turned
from tests.stubs import cases

SUFFIXES = ["jpg", "png", "bmp", "gif", "ppm", "tif", "webp", "avif", "jp2"]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    image.save(file := BytesIO(), format=kind, **options)
    return file.getvalue()


def claiming_png(width: int, height: int) -> bytes:
    """A PNG file of a few bytes whose header says how large it is."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rest = encoded(smooth(9, 9), "PNG")[33:]
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + header + struct.pack(">I", zlib.crc32(header)) + rest


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_the_way_its_exif_data_say(tmp_path, suffix, orientation):
    path = save(smooth(48, 32), tmp_path / f"image.{suffix}", exif=turned(orientation))
    assert check_image(path) == ((32, 48) if orientation > 4 else (48, 32))
    steps = Preprocessing(resize=8, crop=8, mean=[0.5] * 3, std=[0.5] * 3)
    photo = FileDataset([path], torch.tensor([0]), steps).photo(0)
    with Image.open(path) as image:
        assert difference(photo, ImageOps.exif_transpose(image)).max() == 0
    if suffix == "tif":
        pytest.importorskip(
            "tifffile", reason="of the extra tiff, which reads such files with --data.channels"
        )
    assert torch.equal(read_bands(path, (3, 8)), photo)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_as_pil_does(tmp_path, mode, orientation):
    path = save(smooth(803, 601).convert(mode), tmp_path / "image.jpg", exif=turned(orientation))
    for fraction in (1, 2, 4, 8):
        least = 803 // fraction, 601 // fraction
        with Image.open(path) as image:
            image.draft("RGB", least)
            expected = ImageOps.exif_transpose(image)
        assert (
            difference(decoded(path, least[::-1] if orientation == 6 else least), expected).max()
            == 0
        )


@cases(
    "suffix trailing",
    *((suffix, b"") for suffix in SUFFIXES),
    ("jpg", b"\0" * 40),
    ("png", b"garbage" * 100),
)
def test_a_good_file_is_accepted_with_something_after_its_end_too(tmp_path, suffix, trailing):
    path = save(smooth(64, 48), tmp_path / f"image.{suffix}")
    path.write_bytes(path.read_bytes() + trailing)
    check_image(path)
    assert decoded(path).shape == (3, 48, 64)


@pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning"
)  # of an image that cannot be opened
@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp"])
@pytest.mark.parametrize("read", [check_image, decoded])
def test_a_file_cut_short_anywhere_is_refused_by_name(tmp_path, suffix, read):
    path = save(noise(64, 48), tmp_path / f"image of a rose.{suffix}")
    data = path.read_bytes()
    for length in np.linspace(1, 0.97 * len(data), 25).astype(int):
        path.write_bytes(data[:length])
        with pytest.raises(
            UnreadableFileError, match=r"rose\.\w+' cannot be read as an image \(.+\); repair"
        ):
            read(path)


@cases(
    "content why",
    (b"", "not an image: it is empty"),
    (b"<html>not found</html>", "not an image: it begins with b'<html>not"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n", "not an image"),
    (claiming_png(60000, 60000), r"Image size \(\d+ pixels\) exceeds"),
    (claiming_png(2, 60000), "one side is more than 1000 times"),
    (encoded(smooth(64, 48).convert("F"), "TIFF"), ".* 32 bits"),
    (encoded(smooth(64, 48).convert("I"), "TIFF"), ".* 32 bits"),
    ("nowhere", "No such file"),
    ("rose.jpg", "Too many levels of symbolic"),
    ("pipe", "not a file"),
)
@pytest.mark.filterwarnings("ignore::Warning:PIL")  # as a command may say
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("read", [check_image, decoded])
def test_what_is_no_image_is_refused_by_name_and_reason(tmp_path, content, why, read):
    path = tmp_path / "rose.jpg"
    if content == "pipe":
        os.mkfifo(path)  # opening it would wait for ever
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(content)
    with pytest.raises(
        UnreadableFileError, match=rf"rose\.jpg' cannot be read as an image \({why}"
    ):
        read(path)


# all of such a file's bytes say something
PHOTO = Image.blend(smooth(200, 150), noise(200, 150), 0.3)


def inserted(data: bytes, more: bytes, marker: bytes) -> bytes:
    return more.join(data.rpartition(marker)[::2]).replace(more, more + marker)


def replaced(data: bytes, marker: bytes, offset: int, values: bytes) -> bytes:
    start = data.index(marker) + offset
    return data[:start] + values + data[start + len(values) :]


PLAIN = encoded(PHOTO, "JPEG")
IN_ROWS = encoded(PHOTO, "JPEG", restart_marker_rows=1)
PROGRESSIVE = encoded(PHOTO, "JPEG", progressive=True)
PROFILED = encoded(PHOTO, "JPEG", icc_profile=bytes(200))
SCAN, EXTRA = b"\xff\xda\0\x0c\3", b"a dozen more"
FIRST, SECOND, *_ = re.findall(rb"\xff\xc4.*?\xff\xda.*?(?=\xff[\xc4\xd9])", PROGRESSIVE, re.DOTALL)
BLEMISHED = {  # which PIL decodes to the pixels of the file without the blemish
    **{
        f"parameters {text!r}": replaced(PLAIN, SCAN, 11, text)
        for text in (b"\0\0\0", b"\0\x3f\1", b"\1\2\3", b"\0\x40\0")
    },
    **{
        f"bytes before {marker!r}": inserted(PLAIN, EXTRA, marker)
        for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xc4", SCAN, b"\xff\xd9")
    },
    "padding": inserted(PLAIN, bytes(400), b"\xff\xd9"),
    "bytes before a restart": inserted(IN_ROWS, EXTRA, b"\xff\xd3"),
    "text before the end": inserted(PLAIN, 9 * EXTRA, b"\xff\xd9"),
    "progressive": inserted(PROGRESSIVE, EXTRA, b"\xff\xc2"),
    "bytes before a scan": inserted(PROGRESSIVE, EXTRA, b"\xff\xda"),
    "bytes before a scan's table": inserted(PROGRESSIVE, EXTRA, b"\xff\xc4"),
    "version": replaced(PLAIN, b"JFIF\0", 5, b"\2"),
    "profile": replaced(PROFILED, b"ICC_PROFILE\0", 12, b"\x09"),
    "all": replaced(
        inserted(replaced(PROFILED, b"JFIF\0", 5, b"\0"), EXTRA, b"\xff\xdb"), SCAN, 11, bytes(3)
    ),
}


SCRAMBLED = PROGRESSIVE.replace(FIRST + SECOND, SECOND + FIRST)


@pytest.mark.parametrize("data", [*BLEMISHED.values(), SCRAMBLED], ids=[*BLEMISHED, "scans"])
def test_a_jpeg_that_libjpeg_warns_of_is_read_if_all_pixels_are_there(tmp_path, data):
    (path := tmp_path / "image.jpg").write_bytes(data)
    check_image(path)
    with pytest.raises(ValueError, match=r"SOS|bytes before|JFIF|ICC|progression"):
        simplejpeg.decode_jpeg(data)  # type: ignore[attr-defined]  # its stubs
    assert difference(decoded(path), Image.open(path)).max() == 0
    assert decoded(path, (50, 37)).shape == (3, 38, 50)


def test_bytes_behind_the_pixels_that_may_be_lost_ones_are_damage(tmp_path):
    data = inserted(PLAIN, bytes(range(160, 200)), b"\xff\xd9")
    (path := tmp_path / "image.jpg").write_bytes(data)
    with pytest.raises(UnreadableFileError, match="extraneous bytes before marker"):
        decoded(path)


@cases("run", b"\xff" * 100_000 + b"\0", b"\xff" * 100_000)
def test_bytes_of_255_before_a_segment_take_no_quadratic_time(tmp_path, run):
    """Those right before a marker are padding, others are no marker's."""
    segment = b"\xff\xdb"
    (path := tmp_path / "image.jpg").write_bytes(inserted(PLAIN, EXTRA + run, segment))
    with cpu_limit(5.0, TimeoutError()):
        pixels = decoded(path)
    assert difference(pixels, Image.open(BytesIO(PLAIN))).max() == 0


CUT = {
    **BLEMISHED,
    "plain": PLAIN,
    "progressive": PROGRESSIVE,
    "grey": encoded(PHOTO.convert("L"), "JPEG"),
    "CMYK": encoded(PHOTO.convert("CMYK"), "JPEG"),
    "WebP": encoded(PHOTO, "WEBP"),
    "lossless WebP": encoded(PHOTO, "WEBP", lossless=True, method=0),
}


@pytest.mark.parametrize("data", CUT.values(), ids=CUT)
def test_a_file_that_was_cut_but_ends_as_it_should_is_never_accepted(tmp_path, data):
    path = tmp_path / "image.jpg"
    for length in range(2000, 3000, 40):  # within the pixels
        path.write_bytes(data[:length] + data[-2:])
        with pytest.raises(UnreadableFileError):
            decoded(path)


@pytest.mark.parametrize("data", [*CUT.values(), SCRAMBLED], ids=[*CUT, "scans"])
def test_the_check_refuses_exactly_what_training_would(tmp_path, data):
    path = tmp_path / "image.jpg"
    draw = random.Random(0)
    for _ in range(20):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 9])):
            damaged[draw.randrange(700, len(data))] = draw.randrange(256)
        path.write_bytes(damaged[: draw.choice([len(data), draw.randrange(700, len(data))])])
        assert is_refused(check_image, path) == is_refused(decoded, path)


def is_refused(read: Callable[[Path], object], path: Path) -> bool:
    try:
        read(path)
    except UnreadableFileError:
        return True
    return False
