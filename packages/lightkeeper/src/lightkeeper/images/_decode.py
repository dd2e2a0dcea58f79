"""Opens and decodes single image files, and tells whole ones from damaged ones."""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin, TiffImagePlugin, UnidentifiedImageError
from torch import Tensor

from ..exact._errors import LocalError, UnreadableFileError, UserError, printable
from ._pillow import (
    ORIENTATION,
    SIDEWAYS,
    correct_depth,
    orientation,
    read_bytes,
    refuse_any,
    upper_bits,
    without_metadata,
)
from ._preprocessing import Bands

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

_MOST_BYTES = 2**30  # of a decoded TIFF file; PIL has a limit of its own
_LONGEST = 1000  # times the shorter side; scaled to fit, a longer image would fill the memory
# axes that an orientation has reversed, once width and height are exchanged
_MIRRORED = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}
_TIFF_STARTS = tuple(TiffImagePlugin.PREFIXES)
_NO_BRIGHTNESS = (0, 3)  # photometrics of TIFF: white is zero, palette
_PNG_START = b"\x89PNG"
_PNG_BITS = 24  # where a PNG file says how many
# JPEG files
_MARKER = re.compile(rb"\xff([\x01-\xfe])")
_DECODES = rb"[\xc0-\xcf\xdb\xdd\xee]"  # markers of frames, tables, intervals, Adobe's colours
_SCANS = b"\xff\xda"
_END = b"\xff\xd9"
_SCAN = re.compile(
    rb"(\xff\xda\0(?:\x08\x01.{2}|\x0a\x02.{4}|\x0c\x03.{6}|\x0e\x04.{8}))...", re.DOTALL
)
_HARMLESS = re.compile(r"(\d+) extraneous bytes before marker|Inconsistent progression sequence")
_FEW_BYTES = 16  # damage mostly leaves more: the data of a block of pixels
# errors of the system that are the file's own fault; PIL's own OSErrors have no number
_OF_THE_FILE = (
    None,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)


@contextmanager
def unreadable_errors(path: str | Path) -> Iterator[None]:
    """Turns any error about a file into one line that names it.

    It is an UnreadableFileError if the file is to blame, and otherwise a LocalError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"'{printable(path)}' needs the package {error.name}: pip install {error.name}"
        raise LocalError(text) from error
    except (UserError, ImportError):
        raise
    except Exception as error:  # damaged files raise nearly every kind
        if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
            raise LocalError(f"'{printable(path)}' cannot be read ({error.strerror})") from error
        raise UnreadableFileError(
            f"'{printable(path)}' cannot be read as an image ({_why(error)});"
            " repair the file or remove it"
        ) from error


def reason(error: LocalError) -> str:
    """Returns the reason why a file cannot be read, without its name."""
    return _why(error.__cause__ or error)


def _why(error: BaseException) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


def open_image(path: str | Path, content: bytes | None = None) -> Image.Image:
    """Opens an image as it is stored, not turned.

    The pixels of a PNG file are decoded at once, as its metadata may follow them, others when they
    are first used. The ``content`` of a file is read in place of the file.
    """
    with unreadable_errors(path):
        if content is None:
            _require_file(path)
        try:
            return _opened(path if content is None else BytesIO(content))
        except Exception:
            bare = without_metadata(path if content is None else BytesIO(content))
            if bare is None:
                raise
        return _opened(bare)


def _opened(file: str | Path | BytesIO) -> Image.Image:
    try:
        image = Image.open(file, formats=[*_FORMATS])
    except UnidentifiedImageError as error:
        start = read_bytes(file, 20)
        if not start.startswith(_TIFF_STARTS):
            raise ValueError(
                f"not an image: it begins with {start!r}" if start else "not an image: it is empty"
            ) from error
        raise ValueError(
            "its TIFF header is damaged, or its channels or bits are of a kind that Pillow lacks;"
            " see the option channels"
        ) from error
    try:
        require_shape(image.size)
        if image.format == "PNG":
            image.load()
    except Exception:
        image.close()
        raise
    return image


def _require_file(path: str | Path) -> None:
    """Raises an error for a pipe or a device, as opening one could wait for ever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("not a file")


def require_shape(shape: tuple[int, ...]) -> None:
    """Raises an error for width and height, in any order, that no image of a data set has."""
    shorter, longer = sorted(shape)
    if not 0 < longer <= _LONGEST * shorter:
        raise ValueError(f"one side is more than {_LONGEST} times the other: {longer} x {shorter}")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Returns width and height of the image once it is upright, from its header."""
    # PIL gives the upright size of a TIFF file
    sideways = image.format != "TIFF" and orientation(image) in SIDEWAYS
    width, height = image.size
    return (height, width) if sideways else (width, height)


def decode(image: Image.Image, path: str | Path, least: tuple[int, int] | None = None) -> Tensor:
    """Decodes the pixels of an image, upright, uint8 (3, height, width); damage is an error.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if that is at least ``least``, width and
    height.
    """
    with unreadable_errors(path):
        if isinstance(image, JpegImagePlugin.JpegImageFile):
            turn = orientation(image)
            least = least[::-1] if least is not None and turn in SIDEWAYS else least
            pixels = _decode_jpeg(image, least)
            if pixels is not None:
                return _turned(torch.from_numpy(pixels).permute(2, 0, 1), turn)
        return upright_pixels(image)


def _decode_jpeg(
    image: JpegImagePlugin.JpegImageFile, least: tuple[int, int] | None = None
) -> NDArray[np.uint8] | None:
    """Decodes a JPEG that PIL has opened to (height, width, 3), as it is stored, not turned.

    The result is 1/2, 1/4 or 1/8 of the image's size if that is at least ``least``, width and
    height. Lost pixels are an error. Returns None if PIL has to read the file: it is in CMYK, or of
    a kind that simplejpeg lacks.
    """
    file: Any = image.fp
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
    while (marker := _MARKER.search(data, end)) and marker[1] not in _SCANS + _END:
        end = marker.end() + int.from_bytes(data[marker.end() : marker.end() + 2])
        if re.match(_DECODES, marker[1]):
            parts.append(data[marker.start() : end])
    scans = data[marker.start() :] if marker else b""
    parts.append(scans if is_progressive else _SCAN.sub(b"\\1\0\x3f\0", scans))
    return b"".join(parts)


def _read_repaired(data: bytes, read: Callable[..., NDArray[np.uint8]]) -> NDArray[np.uint8] | None:
    """Decodes a JPEG; an error if libjpeg's first warning may mean lost pixels.

    The order of progressive scans is harmless, if the last one ends. So are bytes that remain behind
    pixels if they are few, or zeros or text before the end. Others remain where damage led the
    decoder astray.
    """
    try:
        return read(data)
    except ValueError as warning:
        try:
            pixels = read(data, strict=False)
        except ValueError:  # PIL has the same decoder, and says what is wrong, or reads this kind
            return None
        harmless = _HARMLESS.search(str(warning))
        end = data.rfind(_END)
        if harmless is None or end < data.rfind(_SCANS):
            raise
        behind = data[:end][-int(harmless[1] or 1) :]
        if len(behind) > _FEW_BYTES and not behind.isascii():
            raise
        return pixels


def _turned(pixels: Tensor, turn: int) -> Tensor:
    upright = pixels.transpose(1, 2) if turn in SIDEWAYS else pixels
    return upright.flip(_MIRRORED[turn]) if turn in _MIRRORED else upright


def upright_pixels(image: Image.Image) -> Tensor:
    """Converts an image of any mode to pixels, upright and in RGB, uint8 (3, height, width)."""
    correct_depth(image)
    if not isinstance(image.info.get("xmp", b""), bytes):
        del image.info["xmp"]  # in which PIL looks for an orientation
    image.load()
    pixels = torch.from_numpy(np.array(_rgb(image))).permute(2, 0, 1)
    return _turned(pixels, orientation(image))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB":  # PIL would copy it, and a panorama is large
        return image
    if image.mode.startswith("I"):
        image = Image.fromarray(upper_bits(image))
    return image.convert("RGB")


def check_image(path: str | Path, bands: Bands | None = None) -> tuple[int, int]:
    """Returns the width and height of an upright image; an error if the file is broken.

    It is decoded as in training, which sees the same damage; a JPEG at 1/8 of its size.
    """
    if bands is not None:
        _, height, width = read_bands(path, bands).shape
        return width, height
    with open_image(path) as image:
        size = upright_size(image)
        decode(image, path, least=(1, 1))
        return size


def read_bands(path: str | Path, bands: Bands) -> Tensor:
    """Reads an image as it is stored, but upright, (channels, height, width).

    Raises an error if it has other channels or bits.
    """
    channels, bits = bands
    with unreadable_errors(path):
        _require_file(path)
        stored, turn = _stored(path, bands)
        pixels = stored if stored.ndim > 2 else stored[..., None]
        if pixels.shape[2:] != (channels,) or pixels.dtype != f"uint{bits}":
            raise ValueError(
                f"it is {stored.dtype} {stored.shape}, not uint{bits} (height, width, {channels});"
                " see the options channels and bits"
            )
        require_shape(pixels.shape[:2])
        return _turned(torch.from_numpy(pixels).permute(2, 0, 1), turn)


def _stored(path: str | Path, bands: Bands) -> tuple[NDArray[np.integer], int]:
    """Returns the pixels as they are stored, and how they are turned."""
    start = read_bytes(path, 32)
    if os.path.splitext(path)[1].lower() == ".npy":
        # mapped, which allocates nothing, unpickles nothing and writes nothing
        return np.lib.format.open_memmap(path, mode="c"), 1
    if start.startswith(_TIFF_STARTS):
        return _stored_tiff(path)
    with open_image(path) as image:
        # PIL would keep 8 bits of these 16
        if start.startswith(_PNG_START) and start[_PNG_BITS] == 16 and image.mode != "I;16":
            import imagecodecs  # as few have such images

            return imagecodecs.png_decode(Path(path).read_bytes()), orientation(image)
        correct_depth(image)
        # PIL would clip what is above 255
        grey = "L" if bands == (1, 8) and image.mode not in ("I;16", "I", "F") else None
        return np.array(image.convert(grey)), orientation(image)


def _stored_tiff(path: str | Path) -> tuple[NDArray[np.integer], int]:
    import tifffile  # likewise

    # not OME, whose description could name other files
    with tifffile.TiffFile(path, is_ome=False) as file:
        first, page = file.series[0], file.pages.first
        refusals = {
            f"its shape is {first.shape}": first.nbytes > _MOST_BYTES,  # before that is allocated
            f"its pixels have {page.bitspersample} bits; save it with 8 or 16": (
                page.bitspersample % 8
            ),
            "it has a palette, or 0 for white; save it as grey or RGB": (
                page.photometric in _NO_BRIGHTNESS
            ),
        }
        refuse_any(refusals)
        pixels = first.asarray()
        turn = page.tags.valueof(ORIENTATION, 1)
        return (np.moveaxis(pixels, 0, -1) if first.axes[1:] == "YX" else pixels), turn
