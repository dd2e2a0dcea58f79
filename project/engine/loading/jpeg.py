"""Decodes JPEG files, small ones of large images where that is enough, and refuses lost pixels."""

import re
from collections.abc import Callable
from functools import partial
from typing import IO, cast

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import JpegImagePlugin

_MARKER = re.compile(rb"\xff+([\x01-\xfe])")
_DECODES = rb"[\xc0-\xcf\xdb\xdd\xee]"  # markers of frames, tables, intervals, Adobe's colours
_END_OF_HEADERS = (b"\xda", b"\xd9")  # the pixels, or the end of the image
_SCAN = re.compile(
    rb"(\xff\xda\0(?:\x08\x01.{2}|\x0a\x02.{4}|\x0c\x03.{6}|\x0e\x04.{8}))...", re.DOTALL
)
_HARMLESS = re.compile(r"(\d+) extraneous bytes before marker|Inconsistent progression sequence")
_FEW_BYTES = 16  # damage mostly leaves more: the data of a block of pixels


def decode_jpeg(
    image: JpegImagePlugin.JpegImageFile, least: tuple[int, int] | None = None
) -> NDArray[np.uint8] | None:
    """Decodes a JPEG that PIL has opened to (height, width, 3), as it is stored, not turned.

    The result is 1/2, 1/4 or 1/8 of the image's size if that is at least ``least``, width and
    height. Lost pixels are an error. Returns None if PIL has to read the file: it is in CMYK, or of
    a kind that simplejpeg lacks.
    """
    file = cast("IO[bytes]", image.fp)
    file.seek(0)  # the open file saves opening it again
    data = file.read()
    width, height = least or image.size
    spare = min(image.width // max(1, width), image.height // max(1, height))
    reduction = next((factor for factor in (8, 4, 2) if factor <= spare), 1)
    read = partial(
        simplejpeg.decode_jpeg,  # type: ignore[attr-defined]  # its stubs
        colorspace="CMYK" if image.mode == "CMYK" else "RGB",
        min_height=-(-image.height // reduction),
        min_width=-(-image.width // reduction),
    )
    try:
        pixels: NDArray[np.uint8] | None = read(data)
    except ValueError:  # any warning of libjpeg
        pixels = _read_repaired(_repaired(data, "progressive" in image.info), read)
    return None if image.mode == "CMYK" else pixels


def _repaired(data: bytes, is_progressive: bool) -> bytes:
    """Leaves out what libjpeg warns of before the pixels, and needs for none of them.

    It reports its first warning only, which would hide damage behind it. Cameras and phones write
    bytes between segments, odd versions and profiles, and wrong limits of scans.
    """
    parts, end = [data[:2]], 2
    while (marker := _MARKER.search(data, end)) and marker[1] not in _END_OF_HEADERS:
        end = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
        if re.match(_DECODES, marker[1]):
            parts.append(data[marker.start() : end])
    scans = data[marker.start() :] if marker else b""
    parts.append(scans if is_progressive else _SCAN.sub(b"\\1\0\x3f\0", scans))
    return b"".join(parts)


def _read_repaired(data: bytes, read: Callable[..., NDArray[np.uint8]]) -> NDArray[np.uint8] | None:
    """Decodes a JPEG; an error if libjpeg's first warning may mean lost pixels.

    The order of progressive scans is harmless. So are bytes that remain behind pixels if they are
    few, or zeros or text before the end. Others remain where damage led the decoder astray.
    """
    try:
        return read(data)
    except ValueError as warning:
        try:
            pixels = read(data, strict=False)
        except ValueError:  # PIL has the same decoder, and says what is wrong, or reads this kind
            return None
        harmless = _HARMLESS.search(str(warning))
        if harmless is None:
            raise
        behind = data[: data.rfind(b"\xff\xd9")][-int(harmless[1] or 1) :]
        if len(behind) > _FEW_BYTES and not behind.isascii():
            raise
        return pixels
