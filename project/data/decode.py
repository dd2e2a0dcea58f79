"""Reading single image files: decode, crop and resize, the only work of loader workers; telling whole from broken."""

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import interpolate

from project.errors import UnreadableFileError

Box = tuple[float, float, float, float]
WholeBox = tuple[int, int, int, int]
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


def centre_box(width: int, height: int, resize: int, crop: int) -> Box:
    """The region that remains after scaling the shorter side to ``resize`` and cutting ``crop`` from the centre.

    Returns:
        Left, upper, right and lower edge in pixels of the image.
    """
    side = min(width, height) * crop / resize
    left, upper = (width - side) / 2, (height - side) / 2
    return max(left, 0.0), max(upper, 0.0), min(left + side, width), min(upper + side, height)


def random_box(width: int, height: int, draws: Tensor, scale: tuple[float, float]) -> WholeBox:
    """The region that Inception-style training crops.

    It has a random share of the area and an aspect ratio from 3:4 to 4:3, uniform in its logarithm (Szegedy et al.,
    2015, https://arxiv.org/abs/1409.4842).

    Args:
        width: The image's width in pixels.
        height: The image's height in pixels.
        draws: float (tries, 4) in [0, 1): area, aspect ratio, horizontal and vertical place; the first try that fits is
            used, and the largest central region with an allowed aspect ratio where none does.
        scale: The smallest and largest share of the area.
    """
    for area, ratio, x, y in draws.tolist():
        pixels = width * height * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = (3 / 4) ** (1 - 2 * ratio)
        w, h = round((pixels * aspect) ** 0.5), round((pixels / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(x * (width - w + 1)), int(y * (height - h + 1))
            return left, upper, left + w, upper + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def open_image(path: str | Path) -> Image.Image:
    """Opens an image the right way up; its pixels are decoded when they are first used.

    Raises:
        UnreadableFileError: The file cannot be read as an image.
    """
    return upright(open_as_stored(path), path)


def open_as_stored(path: str | Path) -> Image.Image:
    """Opens an image without turning it; its pixels are decoded when they are first used.

    Raises:
        UnreadableFileError: The file is not an image, has more than ``MAX_PIXELS``, or has pixels of 32 bits.
    """
    with named(path):
        image = Image.open(path, formats=_FORMATS)
        if image.mode in ("I", "F"):  # PIL would cut off what is not between 0 and 255
            image.close()
            raise ValueError("its pixels have 32 bits and an unknown range; save it with 8 or 16")
        return image


def is_turned(image: Image.Image) -> bool:
    """Whether the EXIF data say that the stored image is not upright."""
    return bool(image.getexif().get(_EXIF_ORIENTATION, 1) != 1)


def upright_size(path: str | Path) -> tuple[int, int]:
    """Width and height of the image once it is upright, from its header.

    Raises:
        UnreadableFileError: The file is not an image.
    """
    with open_as_stored(path) as image, named(path):
        width, height = image.size
        return (height, width) if image.getexif().get(_EXIF_ORIENTATION, 1) in _LYING else (width, height)


def upright(image: Image.Image, path: str | Path) -> Image.Image:
    """Turns an image the way its EXIF data say.

    Args:
        image: As :func:`open_as_stored` returns it.
        path: The file, for the error.

    Raises:
        UnreadableFileError: The file is cut short or damaged.
    """
    with named(path):
        return ImageOps.exif_transpose(image) if is_turned(image) else image


def crop_and_resize(image: Image.Image, box: Box, size: int, path: str | Path) -> Tensor:
    """Cuts a region out of an image and scales it, bilinear with antialiasing, to the last digit as PIL does.

    Args:
        image: As :func:`open_image` returns it.
        box: The region in pixels of the image.
        size: The side of the result in pixels.
        path: The file, for the error.

    Returns:
        uint8 (3, size, size).

    Raises:
        UnreadableFileError: The file is cut short or damaged.
    """
    width, height = image.size
    left, upper, right, lower = box
    with named(path):
        # JPEG decodes at 1/2, 1/4 or 1/8 of its size for a fraction of the cost, where that still has enough pixels
        image.draft("RGB", (int(width * size / (right - left)), int(height * size / (lower - upper))))
        x, y = image.size[0] / width, image.size[1] / height
        box = (left * x, upper * y, right * x, lower * y)
        return _tensor(rgb(image).resize((size, size), Image.Resampling.BILINEAR, box=box))


def crop_and_resize_fast(image: Image.Image, box: WholeBox, size: int, path: str | Path) -> Tensor:
    """Cuts a region of whole pixels out of an image and scales it, bilinear with antialiasing, by torch's kernels.

    Args:
        image: As :func:`open_image` returns it.
        box: The region in pixels of the image.
        size: The side of the result in pixels.
        path: The file, which is read again.

    Returns:
        uint8 (3, size, size), which differs from what PIL makes of it by rounding.

    Raises:
        UnreadableFileError: The file is cut short or damaged.
    """
    left, upper, right, lower = box
    reducible = min(right - left, lower - upper) >= 2 * size  # then decoding at a fraction of the size is faster still
    if image.format != "JPEG" or image.mode != "RGB" or reducible:
        return crop_and_resize(image, box, size, path)
    try:
        pixels = simplejpeg.decode_jpeg(Path(path).read_bytes())  # type: ignore[attr-defined]  # its stubs
    except (OSError, ValueError):  # PIL knows what is wrong, or gets over it
        return crop_and_resize(image, box, size, path)
    return scaled_region(torch.from_numpy(pixels).permute(2, 0, 1), box, (size, size))


def decode_small(image: Image.Image, shape: tuple[int, int], path: str | Path) -> Tensor:
    """Decodes a whole image at a size of its own or below.

    Args:
        image: As :func:`open_image` returns it.
        shape: Height and width of the result in pixels.
        path: The file, for the error.

    Returns:
        uint8 (3, height, width).

    Raises:
        UnreadableFileError: The file is cut short or damaged.
    """
    size = shape[1], shape[0]
    with named(path):
        image.draft("RGB", size)
        whole = rgb(image)
        return _tensor(whole if whole.size == size else whole.resize(size, Image.Resampling.BILINEAR))


def scaled_region(image: Tensor, box: WholeBox, shape: tuple[int, int]) -> Tensor:
    """Cuts a region out of decoded pixels and scales it, bilinear with antialiasing.

    Args:
        image: uint8 (3, height, width).
        box: The region in whole pixels.
        shape: Height and width of the result in pixels.

    Returns:
        uint8 (3, *shape).
    """
    left, upper, right, lower = box
    # torch's kernel for three interleaved channels is the fastest, but not for a view
    region = image[None, :, upper:lower, left:right].contiguous(memory_format=torch.channels_last)
    return interpolate(region, size=shape, mode="bilinear", antialias=True)[0]


def _tensor(image: Image.Image) -> Tensor:
    width, height = image.size
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)


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
    with open_as_stored(path) as image, named(path):
        with open(path, "rb") as file:
            file.seek(-min(12, os.path.getsize(path)), os.SEEK_END)
            ending = file.read()
        if _ENDINGS.get(image.format or "", b"none") not in ending:
            image.load()  # other formats, and files with something after their end, are decoded to be sure


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


def printable(path: str | Path) -> str:
    """A name without what would break a line or move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(path))
