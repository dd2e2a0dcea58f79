"""Image files that Pillow misreads or refuses: odd depths, damaged metadata."""

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.TiffImagePlugin import TiffImageFile

ORIENTATION = 0x0112
"""The tag of EXIF and TIFF that says how an image is turned."""

SIDEWAYS = (5, 6, 7, 8)
"""Orientations with width and height exchanged."""

_PNG = b"\x89PNG\r\n\x1a\n"
# of all parts of a PNG file that a reader may leave out, those with transparency or an orientation
_KEPT = (b"tRNS", b"eXIf")
_KEPT_TEXTS = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
_EXIF_ITEM = re.compile(rb"(infe[\2\3].{3}(?:.{4}|.{6}))Exif", re.DOTALL)  # of an AVIF file
# tags of TIFF files that Pillow has no name for, and values of them
_INKS = 332
_WHITE_IS_ZERO, _CMYK, _YCBCR, _LAB = 0, 5, 6, 8
_SEPARATE = 2
_J2K_SIZES = b"\xff\x4f\xff\x51"  # begins the code stream of a JPEG 2000 file
_J2K_BITS = 42  # bytes behind that begin: the bits of the first channel, less 1


def orientation(image: Image.Image) -> int:
    """Returns how an image is turned, 1 to 8 as in EXIF; 1, upright, where that cannot be read."""
    with suppress(Exception):  # damaged metadata raises nearly every kind
        image.getexif()
    with suppress(Exception):  # Pillow keeps what it has read before the damage
        stored = image.getexif().get(ORIENTATION)
        return next((turn for turn in range(1, 9) if turn == stored), 1)  # a fraction, too
    return 1


def read_bytes(file: str | Path | BytesIO, count: int = -1) -> bytes:
    """Reads the first bytes of a file, or all."""
    with BytesIO(file.getbuffer()) if isinstance(file, BytesIO) else open(file, "rb") as opened:
        return opened.read(count)


def without_metadata(file: str | Path | BytesIO) -> BytesIO | None:
    """Leaves out the parts of a PNG or AVIF file that say nothing about its pixels.

    Pillow refuses a file for damage in them, and a PNG file for long ones. Returns None for files
    of other formats.
    """
    start = read_bytes(file, len(_PNG))
    if start == _PNG:
        return BytesIO(_PNG + b"".join(_chunks_of_pixels(read_bytes(file))))
    if start[4:] == b"ftyp":  # another part says how the image is turned
        return BytesIO(_EXIF_ITEM.sub(rb"\1free", read_bytes(file)))
    return None


def _chunks_of_pixels(content: bytes) -> Iterator[bytes]:
    start = len(_PNG)
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4])
        kind, data = content[start + 4 : start + 8], content[start + 8 : end - 4]
        is_kept = kind in _KEPT or data.startswith(_KEPT_TEXTS)
        is_whole = zlib.crc32(kind + data) == int.from_bytes(content[end - 4 : end])
        if kind[:1].isupper() or (is_kept and is_whole):
            yield content[start:end]
        start = end


def correct_depth(image: Image.Image) -> None:
    """Has Pillow decode an image to its picture, or raises an error if that would be another.

    Call it before the pixels are decoded.
    """
    if isinstance(image, TiffImageFile):
        _correct_tiff(image)
    elif isinstance(image, Jpeg2KImageFile) and image.fp is not None:
        _require_j2k_depth(image.fp, image.mode)
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise ValueError("its pixels have 32 bits and an unknown range; save it with 8 or 16")


def refuse_any(refusals: Mapping[str, object]) -> None:
    """Raises an error with the first text whose condition is true."""
    for refusal, applies in refusals.items():
        if applies:
            raise ValueError(refusal)


def upper_bits(image: Image.Image) -> NDArray[np.uint8]:
    """Returns the upper 8 bits of a grey image of 9 to 16, as 0 for black."""
    pixels = np.asarray(image)  # which Pillow would clip, not scale
    if not isinstance(image, TiffImageFile):
        return (pixels >> 8).astype(np.uint8)
    upper = (pixels >> (_bits(image)[0] - 8)).astype(np.uint8)
    return ~upper if _photometric(image) == _WHITE_IS_ZERO else upper


def _bits(image: TiffImageFile) -> tuple[int, ...]:
    return cast("tuple[int, ...]", image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (1,)))


def _photometric(image: TiffImageFile) -> object:
    return image.tag_v2.get(TiffImagePlugin.PHOTOMETRIC_INTERPRETATION, _WHITE_IS_ZERO)


def _correct_tiff(image: TiffImageFile) -> None:
    tags = image.tag_v2
    photometric = _photometric(image)
    is_plain = image.info["compression"] == "raw"  # libtiff reads the others
    is_signed = set(tags.get(TiffImagePlugin.SAMPLEFORMAT, (1,))) == {2}
    is_subsampled = tags.get(TiffImagePlugin.YCBCRSUBSAMPLING, (2, 2)) != (1, 1)
    refusals = {
        "its pixels are signed numbers; save it with unsigned ones": (
            is_signed and max(_bits(image)) < 32
        ),
        "its inks are not CMYK; save it in RGB": photometric == _CMYK and tags.get(_INKS, 1) != 1,
        "its colours are subsampled YCbCr; save it in RGB": (
            is_plain and photometric == _YCBCR and is_subsampled
        ),
        "its palette has 8 bits, not 16; save it in RGB": (
            image.mode == "P" and 0 < max(tags[TiffImagePlugin.COLORMAP]) < 256
        ),
    }
    refuse_any(refusals)
    is_separate = tags.get(TiffImagePlugin.PLANAR_CONFIGURATION) == _SEPARATE
    if is_separate and (is_plain or photometric == _LAB):
        _require_letters(image)
    if tags.get(ORIENTATION) in SIDEWAYS:
        image.filename = ""  # or Pillow would map its pixels with width and height exchanged


def _require_letters(image: TiffImageFile) -> None:
    """Requires separate channels that Pillow reads: it knows the letter of each and no more."""
    is_reversed = image.tag_v2.get(TiffImagePlugin.FILLORDER, 1) != 1
    has_letters = _photometric(image) not in (_WHITE_IS_ZERO, _YCBCR, _LAB)
    if is_reversed or not has_letters or set(_bits(image)) != {8}:
        raise ValueError("its channels are stored separately; save it with interleaved channels")


def _require_j2k_depth(file: IO[bytes], mode: str) -> None:
    """Raises an error for bits that Pillow does not scale, or whose white it turns black."""
    file.seek(0)
    content = file.read()
    bits = (content[content.index(_J2K_SIZES) + _J2K_BITS] & 0x7F) + 1
    if bits < 8 or (bits > 8 and mode != "I;16") or bits > 16:
        raise ValueError(f"its pixels have {bits} bits; save it with 8, or as PNG with 16")
