"""Reading single image files: opening, decoding, telling whole from broken."""

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import UnreadableFileError, printable

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

MAX_PIXELS = 2**28
"""The most pixels that an image may have, a gigabyte once decoded; a file that claims more is refused unread."""
Image.MAX_IMAGE_PIXELS = MAX_PIXELS
# PIL refuses twice that; in between it would warn and decode
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)

Image.init()
# not all that PIL can open, whatever a file is called: for EPS it would run Ghostscript
_FORMATS: list[str] = [
    name
    for name in ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
    if name in Image.OPEN  # AVIF is not in every PIL
]
_EXIF_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)  # values of it with width and height exchanged
_MIRRORED = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}  # axes that are reversed after that
_JPEG = ("JPEG", "MPO")  # the latter has a preview or the other eye's view behind the image
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
# what PIL raises for one damaged file or another
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    SyntaxError,
    MemoryError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)


def open_image(path: str | Path) -> Image.Image:
    """Opens an image as it is stored, not turned; its pixels are decoded when they are first used.

    Raises:
        UnreadableFileError: The file is not an image, has more than ``MAX_PIXELS``, or has pixels of 32 bits.
    """
    with named(path):
        image = Image.open(path, formats=_FORMATS)
        try:
            _require_known_range(image)
        except ValueError:
            image.close()
            raise
        return image


def _require_known_range(image: Image.Image) -> None:
    if image.mode in ("I", "F"):  # PIL would cut off what is not between 0 and 255
        raise ValueError("its pixels have 32 bits and an unknown range; save it with 8 or 16")


def has_16_bits(image: Image.Image) -> bool:
    """Whether pixels are stored with 16 bits, of which the upper 8 are used.

    Args:
        image: As :func:`open_image` returns it, before its pixels are decoded.
    """
    # of three channels PIL itself takes the upper half, which only its name of the stored layout tells
    return image.format in ("PNG", "TIFF") and (
        image.mode.startswith("I;16") or ";16" in str(getattr(image, "tile", ""))
    )


def is_turned(image: Image.Image) -> bool:
    """Whether the EXIF data say that the stored image is not upright."""
    return bool(_orientation(image) != 1)


def _orientation(image: Image.Image) -> Any:
    return image.getexif().get(_EXIF_ORIENTATION, 1)


def upright_size(image: Image.Image, path: str | Path) -> tuple[int, int]:
    """Width and height in pixels of the image once it is upright, from its header.

    Args:
        image: As :func:`open_image` returns it.
        path: The file, for the error.

    Raises:
        UnreadableFileError: The header is damaged.
    """
    width, height = image.size
    with named(path):
        # of a TIFF file PIL gives the upright size
        return (height, width) if image.format != "TIFF" and _orientation(image) in _LYING else (width, height)


def decode(image: Image.Image, path: str | Path, least: tuple[int, int] | None = None) -> Tensor:
    """Decodes the pixels of an image, upright.

    Args:
        image: As :func:`open_image` returns it.
        path: The file, for the error.
        least: A width and a height of the upright image that are enough, for which a JPEG is decoded at 1/2, 1/4 or 1/8
            of its size, at a fraction of the cost; None decodes all pixels.

    Returns:
        uint8 (3, height, width).

    Raises:
        UnreadableFileError: The file is cut short, or the decoder complains of damage.
    """
    with named(path):
        if image.format in _JPEG:
            orientation = _orientation(image)
            least = least[::-1] if least is not None and orientation in _LYING else least
            pixels = _decode_jpeg(image, _reduction(image.size, least))
            if pixels is not None:
                return _turned(torch.from_numpy(pixels).permute(2, 0, 1), orientation)
        return upright_pixels(image)


def upright_pixels(image: Image.Image) -> Tensor:
    """The pixels of an image that PIL has opened or made, upright and in 8-bit RGB.

    Args:
        image: Of any mode.

    Returns:
        uint8 (3, height, width).

    Raises:
        ValueError: Its pixels have 32 bits.
    """
    _require_known_range(image)
    whole = rgb(ImageOps.exif_transpose(image) if is_turned(image) else image)
    return torch.from_numpy(np.array(whole)).permute(2, 0, 1)


def _reduction(size: tuple[int, int], least: tuple[int, int] | None) -> int:
    if least is None:
        return 1
    spare = min(size[0] // max(1, least[0]), size[1] // max(1, least[1]))
    return next((factor for factor in (8, 4, 2) if factor <= spare), 1)


def _decode_jpeg(image: Any, reduction: int) -> NDArray[np.uint8] | None:
    """Decodes a JPEG to uint8 (height, width, 3), and takes what libjpeg only warns of for damage, where PIL would not.

    Returns:
        None where PIL has to read it: it is whole but in CMYK, or it is of a kind that simplejpeg does not know.

    Raises:
        ValueError: A part is missing or damaged.
    """
    image.fp.seek(0)  # the open file saves opening it again
    data = image.fp.read()
    in_cmyk = image.mode == "CMYK"
    width, height = (-(-side // reduction) for side in image.size)
    read = simplejpeg.decode_jpeg  # type: ignore[attr-defined]  # its stubs
    decoded = partial(read, data, "CMYK" if in_cmyk else "RGB", min_height=height, min_width=width)
    try:
        pixels: NDArray[np.uint8] = decoded()
    except ValueError as complaint:
        try:
            decoded(strict=False)
        except ValueError:  # PIL's decoder is the same, and says what is wrong unless it reads such files
            return None
        raise complaint
    return None if in_cmyk else pixels


def _turned(pixels: Tensor, orientation: Any) -> Tensor:
    """Turns (3, height, width) the way the EXIF data say."""
    upright = pixels.transpose(1, 2) if orientation in _LYING else pixels
    return upright.flip(_MIRRORED[orientation]) if orientation in _MIRRORED else upright


def rgb(image: Image.Image) -> Image.Image:
    """Converts to 8-bit RGB."""
    if image.mode == "RGB":  # PIL would copy it, and a panorama is large
        return image
    if image.mode.startswith("I;16"):  # PIL would clip 16 bits to 8, not scale them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if isinstance(image.info.get("transparency"), bytes):  # PIL warns unless the transparency is kept at first
        image = image.convert("RGBA")
    return image.convert("RGB")


def check_image(path: str | Path) -> None:
    """Tells a whole file from a broken one, nearly always from its header and its last bytes alone.

    Raises:
        UnreadableFileError: The file is empty, is not an image, or is cut short.
    """
    with open_image(path) as image, named(path):
        with open(path, "rb") as file:
            file.seek(-min(12, os.path.getsize(path)), os.SEEK_END)
            ending = file.read()
        if _ENDINGS.get(image.format or "", b"none") not in ending:
            decode(image, path)  # other formats, and files with something after their end, to be sure


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Makes of whatever PIL raises an error of one line, with the file's name.

    Raises:
        UnreadableFileError: The file cannot be read as an image.
    """
    try:
        yield
    except _BROKEN as error:
        text = f"'{printable(path)}' cannot be read as an image ({_why(error)}); repair the file or remove it"
        raise UnreadableFileError(text) from error


def reason(error: UnreadableFileError) -> str:
    """Why the file cannot be read, without its name."""
    return _why(error.__cause__ or error)


def _why(error: BaseException) -> str:
    if "cannot identify image file" in str(error):
        return "not an image"
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
