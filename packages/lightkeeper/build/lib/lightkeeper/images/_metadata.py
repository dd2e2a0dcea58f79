"""Metadata of image files: how an image is turned, and parts that keep Pillow from its pixels."""

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

from PIL import Image

ORIENTATION = 0x0112
"""The tag of EXIF and TIFF that says how an image is turned."""

SIDEWAYS = (5, 6, 7, 8)
"""Orientations with width and height exchanged."""

_PNG = b"\x89PNG\r\n\x1a\n"
# of all parts of a PNG file that a reader may leave out, those with transparency or an orientation
_KEPT = (b"tRNS", b"eXIf")
_KEPT_TEXTS = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
_EXIF_ITEM = re.compile(rb"(infe[\2\3].{3}(?:.{4}|.{6}))Exif", re.DOTALL)  # of an AVIF file


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
