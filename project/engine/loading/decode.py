"""Reads single image files: opens and decodes them, and tells whole ones from damaged ones."""

import errno
import os
import struct
import tokenize
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from ..errors import LocalError, UnreadableFileError, UserError, printable
from ..preprocessing import Bands

# not all that PIL can open, whatever a file is called: for EPS it would run Ghostscript
_FORMATS = {
    "AVIF": [".avif", ".avifs"],
    "BMP": [".bmp"],
    "GIF": [".gif"],
    "JPEG": [".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"],
    "JPEG2000": [".jp2", ".j2k", ".jpc", ".jpf", ".jpx", ".j2c"],
    "PNG": [".png", ".apng"],
    "PPM": [".ppm", ".pgm", ".pbm", ".pnm"],
    "TIFF": [".tif", ".tiff"],
    "WEBP": [".webp"],
}
IMAGE_SUFFIXES = frozenset(suffix for suffixes in _FORMATS.values() for suffix in suffixes)
"""The ends of the names of image files."""

MAX_PIXELS = 2**28
"""The most pixels that an image may have, a gigabyte once decoded; a file that claims more is refused unread."""
Image.MAX_IMAGE_PIXELS = MAX_PIXELS  # PIL refuses twice that; in between it would warn and decode
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)

_LONGEST = (
    1000  # times the shorter side: scaled so that this fits, a longer one would fill the memory
)
_EXIF_ORIENTATION = 0x0112
_LYING = (5, 6, 7, 8)  # values of it with width and height exchanged
_MIRRORED = {
    2: (2,),
    3: (1, 2),
    4: (1,),
    6: (2,),
    7: (1, 2),
    8: (1,),
}  # axes that are reversed after that
_JPEG = ("JPEG", "MPO")  # the latter has a preview or the other eye's view behind the image
_ENDINGS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
# what PIL raises for one damaged file or another
_OF_PYTHON = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    SyntaxError,
    MemoryError,
)
_OF_OTHERS = (AssertionError, RuntimeError, tokenize.TokenError)  # of tifffile, imagecodecs, NumPy
_OF_PIL = (struct.error, zlib.error, Image.DecompressionBombError, Image.DecompressionBombWarning)
# errors of the system that are the file's own fault; PIL's own OSErrors have no number
_OF_THE_FILE = (
    None,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Turns whatever PIL raises into one line with the file's name; of the kind below only if it is the file's fault."""
    try:
        yield
    except (*_OF_PYTHON, *_OF_PIL, *_OF_OTHERS) as error:
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            raise LocalError(f"'{printable(path)}' cannot be read ({error.strerror})") from error
        text = f"'{printable(path)}' cannot be read as an image ({_why(error)}); repair the file or remove it"
        raise UnreadableFileError(text) from error


def reason(error: LocalError) -> str:
    """The reason why a file cannot be read, without its name."""
    return _why(error.__cause__ or error)


def _why(error: BaseException) -> str:
    if "cannot identify image file" in str(error):
        return "not an image"
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


def open_image(path: str | Path, content: bytes | None = None) -> Image.Image:
    """Opens an image as it is stored, not turned; its pixels are decoded when they are first used.

    The ``content`` of a file is read in place of the file.
    """
    with named(path):
        image = Image.open(path if content is None else BytesIO(content), formats=[*_FORMATS])
        if max(image.size) > _LONGEST * min(image.size):
            image.close()
            raise ValueError(f"one side is more than {_LONGEST} times the other")
        return image


def _orientation(image: Image.Image) -> Any:
    return image.getexif().get(_EXIF_ORIENTATION, 1)  # 1 is upright


def upright_size(image: Image.Image, path: str | Path) -> tuple[int, int]:
    """Width and height in pixels of the image once it is upright, from its header."""
    width, height = image.size
    with named(path):
        # of a TIFF file PIL gives the upright size
        return (
            (height, width)
            if image.format != "TIFF" and _orientation(image) in _LYING
            else (width, height)
        )


def decode(image: Image.Image, path: str | Path, least: tuple[int, int] | None = None) -> Tensor:
    """Decodes the pixels of an image, upright, uint8 (3, height, width); damage is an error.

    Where a width and a height of ``least`` are enough, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size.
    """
    with named(path):
        if image.format in _JPEG:
            turn = _orientation(image)
            least = least[::-1] if least is not None and turn in _LYING else least
            pixels = _decode_jpeg(image, _reduction(image.size, least))
            if pixels is not None:
                return _turned(torch.from_numpy(pixels).permute(2, 0, 1), turn)
        return upright_pixels(image)


def _turned(pixels: Tensor, turn: Any) -> Tensor:
    upright = pixels.transpose(1, 2) if turn in _LYING else pixels
    return upright.flip(_MIRRORED[turn]) if turn in _MIRRORED else upright


def read_bands(path: str | Path, bands: Bands) -> Tensor:
    """Reads an image as it is stored, but upright, (channels, height, width); an error if it has other channels or bits."""
    with named(path):
        found, turn = _stored(path, bands)
        pixels = found if found.ndim > 2 else found[..., None]
        if pixels.shape[2:] != bands[:1] or pixels.dtype != f"uint{bands[1]}":
            stored = f"{found.dtype} {found.shape}, not uint{bands[1]} (height, width, {bands[0]})"
            raise ValueError(f"it is {stored}; see --data.channels and --data.bits")
        if pixels.nbytes > 3 * MAX_PIXELS or not 0 < max(pixels.shape[:2]) <= _LONGEST * min(
            pixels.shape[:2]
        ):
            raise ValueError(f"its shape is {found.shape}")
        return _turned(torch.from_numpy(pixels).permute(2, 0, 1), turn)


def _stored(path: str | Path, bands: Bands) -> tuple[NDArray[Any], Any]:
    ending = os.path.splitext(path)[1].lower()
    if (
        ending == ".npy"
    ):  # mapped, so that nothing is allocated; this never unpickles, nor writes to the file
        return np.lib.format.open_memmap(path, mode="c"), 1
    if ending in (".tif", ".tiff"):
        with _extra("tifffile").TiffFile(
            path, is_ome=False
        ) as file:  # whose description could name other files
            first = file.series[0]
            stored = sum(sum(page.databytecounts) for page in first.pages if page is not None)
            if (
                first.nbytes > 3 * MAX_PIXELS or stored > 2 * first.nbytes + 2**20
            ):  # before that is allocated
                raise ValueError(f"its shape is {first.shape}")
            pixels, turn = first.asarray(), file.pages.first.tags.valueof(_EXIF_ORIENTATION, 1)
            return (np.moveaxis(pixels, 0, -1) if first.axes[1:] == "YX" else pixels), turn
    with open_image(path) as image:
        if (
            ";16" in str(getattr(image, "tile", "")) and image.mode != "I;16"
        ):  # of which PIL would keep 8 bits
            if image.format != "PNG":
                raise ValueError("PIL reads 8 of its 16 bits; save it as PNG, TIFF or .npy")
            return _extra("imagecodecs").png_decode(Path(path).read_bytes()), _orientation(image)
        # of more bits than 8, PIL would clip what is above 255
        grey = "L" if bands == (1, 8) and image.mode not in ("I;16", "I", "F") else None
        return np.array(image.convert(grey)), _orientation(image)


def _extra(package: str) -> Any:
    try:
        return import_module(package)  # few need it
    except ModuleNotFoundError as error:
        text = f'--data.channels: such images need the package {package}: pip install --editable ".[tiff]"'
        raise UserError(text) from error


def upright_pixels(image: Image.Image) -> Tensor:
    """Converts an image of any mode to pixels, upright and in RGB, uint8 (3, height, width)."""
    if image.mode in ("I", "F"):  # PIL would cut off what is not between 0 and 255
        raise ValueError("its pixels have 32 bits and an unknown range; save it with 8 or 16")
    whole = _rgb(ImageOps.exif_transpose(image) if _orientation(image) != 1 else image)
    return torch.from_numpy(np.array(whole)).permute(2, 0, 1)


def _reduction(size: tuple[int, int], least: tuple[int, int] | None) -> int:
    if least is None:
        return 1
    spare = min(size[0] // max(1, least[0]), size[1] // max(1, least[1]))
    return next((factor for factor in (8, 4, 2) if factor <= spare), 1)


def _decode_jpeg(image: Any, reduction: int) -> NDArray[np.uint8] | None:
    """Decodes a JPEG to (height, width, 3); a warning of libjpeg is an error here, as it means damage.

    Returns None where PIL has to read the file: it is whole but in CMYK, or of a kind that simplejpeg does not know.
    """
    image.fp.seek(0)  # the open file saves opening it again
    data = image.fp.read()
    in_cmyk = image.mode == "CMYK"
    height, width = (-(-side // reduction) for side in reversed(image.size))
    read = simplejpeg.decode_jpeg  # type: ignore[attr-defined]  # its stubs
    decoded = partial(read, data, "CMYK" if in_cmyk else "RGB", min_height=height, min_width=width)
    try:
        pixels: NDArray[np.uint8] = decoded()
        return None if in_cmyk else pixels
    except ValueError as complaint:
        try:
            decoded(strict=False)
        except (
            ValueError
        ):  # PIL's decoder is the same, and says what is wrong unless it reads such files
            return None
        raise complaint


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":  # PIL would copy it, and a panorama is large
        return image
    if image.mode.startswith("I;16"):  # PIL would clip 16 bits to 8, not scale them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if isinstance(
        image.info.get("transparency"), bytes
    ):  # PIL warns unless the transparency is kept at first
        image = image.convert("RGBA")
    return image.convert("RGB")


def check_image(path: str | Path) -> None:
    """Raises an error for a broken file, which it tells nearly always from the header and the last bytes alone."""
    with open_image(path) as image, named(path):
        with open(path, "rb") as file:
            file.seek(-min(12, os.path.getsize(path)), os.SEEK_END)
            ending = file.read()
        if _ENDINGS.get(image.format or "", b"none") not in ending:
            decode(
                image, path
            )  # other formats, and files with something after their end, to be sure
