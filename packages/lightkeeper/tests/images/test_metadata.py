"""Whole pixels are read whatever their metadata are, upright as far as these can be read."""

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from lightkeeper.exact._errors import UnreadableFileError
from lightkeeper.images._decode import check_image, read_bands
from PIL import Image
from torch import Tensor

from tests.image_files import decoded, noise, smooth, turned
from tests.stubs import cases
from tests.tiff_files import ORIENTATION, write_tiff

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:PIL"),  # of damage that it gets over
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]
MAKER, RESOLUTION, DATE, PARTS, XMP = 0x010F, 0x011A, 0x0132, 0x014A, 700
BYTE, ASCII, SHORT, LONG, FRACTION, UNDEFINED, SIGNED_FRACTION = 1, 2, 3, 4, 5, 7, 10
PNG = b"\x89PNG\r\n\x1a\n"
IMAGE = smooth(48, 32)


def exif(*entries: tuple[int, int, int, bytes]) -> bytes:
    """An EXIF block of tags, types, counts and values as they are stored."""
    directory, behind = struct.pack("<H", len(entries)), b""
    for tag, kind, count, value in sorted(entries):
        if len(value) > 4:
            at = 8 + 2 + 12 * len(entries) + 4 + len(behind)
            value, behind = struct.pack("<I", at), behind + value
        directory += struct.pack("<HHI4s", tag, kind, count, value)
    return b"Exif\0\0II*\0\x08\0\0\0" + directory + bytes(4) + behind


def short(value: int) -> bytes:
    return struct.pack("<H", value)


def chunk(kind: bytes, data: bytes, damage: int = 0) -> bytes:
    checksum = zlib.crc32(kind + data) ^ damage
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def png(*chunks: bytes, behind: bool = False) -> bytes:
    """A PNG file with more chunks, in front of its pixels or behind."""
    data = encoded("PNG")
    start = data.index(b"IEND" if behind else b"IDAT") - 4
    return data[:start] + b"".join(chunks) + data[start:]


def encoded(kind: str, **options: object) -> bytes:
    image = IMAGE.convert("CMYK") if kind == "CMYK" else IMAGE
    image.save(file := BytesIO(), "JPEG" if kind == "CMYK" else kind, **options)
    return file.getvalue()


def profile(block: bytes) -> bytes:
    return chunk(
        b"tEXt", b"Raw profile type exif\0\nexif\n%8d\n" % len(block) + block.hex().encode()
    )


def avif(block: bytes, turn: int) -> bytes:
    """An AVIF file that another part turns, whose EXIF data begin with the block's."""
    filler = turned(turn)
    filler[MAKER] = "q" * 3000
    data = encoded("AVIF", exif=filler)
    start = data.index(filler.tobytes()[6:10], data.index(b"mdat"))  # of either byte order
    return data[:start] + block[6:] + data[start + len(block) - 6 :]


FILES: dict[str, Callable[[bytes], bytes]] = {
    "JPEG": lambda block: encoded("JPEG", exif=block),
    "JPEG with a density": lambda block: encoded("JPEG", exif=block, dpi=(72, 72)),
    "CMYK": lambda block: encoded("CMYK", exif=block, dpi=(72, 72)),
    "MPO": lambda block: encoded("MPO", exif=block, save_all=True, append_images=[noise(48, 32)]),
    "PNG": lambda block: png(chunk(b"eXIf", block[6:])),
    "PNG, behind": lambda block: png(chunk(b"eXIf", block[6:]), behind=True),
    "PNG, as a text": lambda block: png(profile(block)),
    "WebP": lambda block: encoded("WEBP", lossless=True, exif=block),
}
DAMAGED = {
    "zeros": b"Exif\0\0" + bytes(40),
    "text": b"Exif\0\0" + b"made by a phone",
    "short": b"Exif\0\0II*\0\x08\0\0",
    "cut": exif((MAKER, ASCII, 9, b"a camera"))[:20],
    "beyond": b"Exif\0\0II*\0\xff\xff\xff\x7f" + bytes(20),
    "type": exif((MAKER, 77, 3, b"abc")),
    "value": exif((MAKER, ASCII, 0xFFFFFFF0, b"\x08")),
}
ODD = {  # of which PIL can read the orientation, but not write it again
    "text": (RESOLUTION, ASCII, 3, b"72\0"),
    "negative": (RESOLUTION, SIGNED_FRACTION, 1, struct.pack("<2i", -72, 1)),
    "fraction": (DATE, FRACTION, 1, struct.pack("<2I", 1, 0)),
    "parts": (PARTS, ASCII, 3, b"ab\0"),
}


def as_stored(data: bytes) -> np.ndarray:
    """The pixels that PIL decodes, not turned."""
    return np.array(Image.open(BytesIO(data)).convert("RGB"))


def require(path: Path, data: bytes, expected: np.ndarray) -> None:
    path.write_bytes(data)
    assert check_image(path) == expected.shape[1::-1]
    np.testing.assert_array_equal(decoded(path).permute(1, 2, 0), expected)


@pytest.mark.parametrize("block", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("kind", FILES)
def test_an_image_with_damaged_exif_data_is_read_as_it_is_stored(tmp_path, kind, block):
    require(tmp_path / "image", FILES[kind](block), as_stored(FILES[kind](exif())))


@cases(
    "others kind count value is_turned",
    *(([odd], SHORT, 1, short(6), True) for odd in ODD.values()),
    ([], LONG, 1, short(6), True),
    ([], FRACTION, 1, struct.pack("<2I", 12, 2), True),
    ([], SHORT, 1, short(1), False),
    ([], SHORT, 1, short(0), False),
    ([], SHORT, 1, short(9), False),
    ([], SHORT, 2, short(6) + short(3), True),
    ([], SHORT, 0, b"", False),
    ([], FRACTION, 1, bytes(8), False),
    ([], ASCII, 2, b"6\0", False),
    ([], SHORT, 9, struct.pack("<I", 9999), False),
)
@pytest.mark.parametrize("image", FILES)
def test_an_image_is_turned_whatever_its_other_tags_are_and_by_another_type_as_pil_does_or_not_at_all(
    tmp_path, image, others, kind, count, value, is_turned
):
    data = FILES[image](exif(*others, (ORIENTATION, kind, count, value)))
    stored = as_stored(FILES[image](exif()))
    require(tmp_path / "image", data, np.rot90(stored, -1) if is_turned else stored)


@pytest.mark.parametrize("block", [*DAMAGED.values(), exif(ODD["text"])], ids=[*DAMAGED, "odd"])
@pytest.mark.parametrize("turn", [1, 6])
def test_an_avif_file_is_turned_by_its_own_part(tmp_path, block, turn):
    """Of which libavif and PIL refuse EXIF data that are damaged, or that PIL cannot write again."""
    stored = as_stored(encoded("AVIF"))
    expected = np.rot90(stored, -1) if turn == 6 else stored
    require(tmp_path / "image.avif", avif(block, turn), expected)


LONG_TEXT = zlib.compress(bytes(2_000_000))
CHUNKS = {
    "text": chunk(b"zTXt", b"prompt\0\0" + LONG_TEXT),
    "international text": chunk(b"iTXt", b"prompt\0\1\0\0\0" + LONG_TEXT),
    "profile": chunk(b"iCCP", b"wide\0\0" + LONG_TEXT),
    "no profile": chunk(b"iCCP", b""),
    "method": chunk(b"zTXt", b"a\0\5abc"),
    "density": chunk(b"pHYs", b"ab"),
    "gamma": chunk(b"gAMA", b""),
    "checksum": chunk(b"tEXt", b"a\0b", damage=1),
    "EXIF checksum": chunk(b"eXIf", exif((ORIENTATION, SHORT, 1, short(3)))[6:], damage=1),
    "animation": chunk(b"acTL", b"ab"),
}


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("more", CHUNKS.values(), ids=CHUNKS)
def test_a_png_file_is_read_whatever_is_around_its_pixels(tmp_path, more, behind):
    plain = as_stored(png())
    upside_down = exif((ORIENTATION, SHORT, 1, short(3)))
    if b"eXIf" not in more:
        data = png(more, chunk(b"eXIf", upside_down[6:]), behind=behind)
        require(tmp_path / "image.png", data, plain[::-1, ::-1])
        require(
            tmp_path / "image.png",
            png(more, profile(upside_down), behind=behind),
            plain[::-1, ::-1],
        )
    if b"eXIf" not in more or not behind:  # PIL does not look at the checksum of what is behind
        require(tmp_path / "image.png", png(more, behind=behind), plain)


def test_a_png_file_with_long_texts_and_damaged_pixels_is_refused(tmp_path):
    path = tmp_path / "image.png"
    data = png(CHUNKS["text"])
    path.write_bytes(data[:-40] + bytes(20) + data[-20:])
    with pytest.raises(UnreadableFileError):
        decoded(path)


@pytest.mark.parametrize("turn", [1, 6])
def test_a_tiff_whose_xmp_data_are_no_text_is_read(tmp_path, turn):
    values = np.asarray(IMAGE).astype(np.int64)
    tags = {XMP: 5, ORIENTATION: turn}
    path = write_tiff(tmp_path / "image.tif", values, 8, 2, tags=tags)
    require(path, path.read_bytes(), np.rot90(values, -1) if turn == 6 else values)


@pytest.mark.parametrize("kind", FILES)
def test_images_that_are_used_as_they_are_stored_are_turned_alike(tmp_path, kind):
    path, channels = tmp_path / "image", 4 if kind == "CMYK" else 3
    for block in (DAMAGED["zeros"], exif(ODD["text"], (ORIENTATION, SHORT, 1, short(6)))):
        path.write_bytes(FILES[kind](block))
        bands: Tensor = read_bands(path, (channels, 8))
        assert bands.shape[1:] == decoded(path).shape[1:]
        if channels == 3 and "JPEG" not in kind:
            assert torch.equal(bands, decoded(path))
