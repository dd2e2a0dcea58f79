"""Opens a photo, with PIL, and prepares it for a file that was exported with --prepared; names the answer."""

import contextlib
import io
import json
import zlib

import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
# not all that PIL can open: for EPS it would run Ghostscript on what a request has sent
FORMATS = ["AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"]
METHODS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_photo(content):
    """Open the bytes of an image file; of a PNG file, whatever its texts and profile are."""
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        image.load()
    except Exception:  # PIL raises all kinds, also for texts of more than 1 MB
        if not content.startswith(PNG):
            raise
        image = Image.open(io.BytesIO(PNG + b"".join(needed_chunks(content))), formats=["PNG"])
    return image


def needed_chunks(content):
    """Yield the chunks of a PNG file that hold pixels, transparency or whole EXIF data."""
    start = len(PNG)
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
        kind, data = content[start + 4 : start + 8], content[start + 4 : end - 4]
        is_whole = zlib.crc32(data) == int.from_bytes(content[end - 4 : end], "big")
        if kind[:1].isupper() or (kind in (b"tRNS", b"eXIf") and is_whole):
            yield content[start:end]
        start = end


def upright(image):
    """Turn an image as its EXIF data say; leave it as it is stored where damage hides that."""
    image.load()
    method = None
    with contextlib.suppress(Exception):  # damage raises all kinds
        image.getexif()
    with contextlib.suppress(Exception):  # PIL keeps what it has read
        method = METHODS.get(image.getexif().get(0x0112))
    return image if method is None else image.transpose(method)


def rgb(image):
    """Turn an image upright, and into red, green and blue of 8 bits; of 16 bits, the upper ones."""
    tags = getattr(image, "tag_v2", {})  # of TIFF: bits, the meaning of 0, signed or not
    bits, is_negative = tags.get(258, (16,))[0], tags.get(262) == 0
    is_wide = image.mode == "F" or (image.mode == "I" and image.format != "PPM")
    if is_wide or 2 in tags.get(339, ()):
        raise ValueError("its pixels are signed or have 32 bits; save it with 8 or 16")
    image = upright(image)
    if image.mode.startswith("I"):  # convert would clip them
        upper = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
        image = Image.fromarray(~upper if is_negative else upper)
    return image.convert("RGB")


def pixels(image):
    """Turn a PIL image into uint8 (3, height, width)."""
    return np.asarray(rgb(image)).transpose(2, 0, 1)


def prepare(image, about):
    """Turn a PIL image into uint8 (3, height, width), as the file's metadata say."""
    image = rgb(image)
    fit, size = about["fit"], np.array(image.size)
    # one number for a square, or height and width
    crop, resize = (np.broadcast_to(json.loads(about[x]), 2)[::-1] for x in ("crop", "resize"))
    if fit == "crop":  # the image covers resize
        scale = (resize / size).max()
    elif fit == "pad":  # the image lies within crop
        scale = (crop / size).min()
    else:  # squash
        scale = crop / size
    size = np.maximum(1, (size * scale + 1e-9).astype(int)).tolist()
    method = Image.Resampling[about["interpolation"].upper()]
    # the width first, as evaluation does: from Pillow 13 on, resize may begin with the height
    scaled = image.resize((size[0], image.height), method).resize(size, method)
    colour = tuple(round(255 * mean) for mean in json.loads(about["mean"]))
    canvas = Image.new("RGB", tuple(crop.tolist()), colour)
    margins = (crop - size).tolist()
    canvas.paste(scaled, tuple(round(x / 2) if x < 0 else x // 2 for x in margins))
    return np.asarray(canvas).transpose(2, 0, 1)


def answers(probabilities, about):
    """List the places of an image's class, or of all its classes, by the thresholds of validation."""
    thresholds = [*json.loads(about.get("thresholds") or "{}").values()]
    shares = np.asarray(probabilities)
    if not json.loads(about["has_one_class"]):
        return np.flatnonzero(shares > (thresholds or 0.5)).tolist()
    if about.get("positive"):  # files of before do not name it
        positive = int(about["positive"])
        return [positive if shares[positive] >= thresholds[positive] else 1 - positive]
    # a threshold may be 0
    return [int((shares / np.maximum(thresholds or 1, 1e-30)).argmax())]


def require_rgb(about):
    """Refuse a file that takes other images than ``pixels`` and ``prepare`` make."""
    channels = len(json.loads(about["mean"]))
    bits = about.get("bits") or "8"
    if (channels, bits) != (3, "8"):
        raise SystemExit(
            f"error: takes {channels} channels of {bits} bits; prepare.py makes 3 of 8"
        )
