"""Resizes and crops a photo outside of an exported file, with PIL, as the file's metadata say."""

import json

import numpy as np
from PIL import Image, ImageOps


def prepare(image, about):
    """Turn a PIL image into uint8 (3, crop, crop), as the file's metadata say."""
    image = ImageOps.exif_transpose(image).convert("RGB")
    crop, fit, (width, height) = int(about["crop"]), about["fit"], image.size
    if fit == "crop":  # the shorter side becomes resize
        scale_x = scale_y = int(about["resize"]) / min(width, height)
    elif fit == "pad":  # the longer side becomes crop
        scale_x = scale_y = crop / max(width, height)
    else:  # squash
        scale_x, scale_y = crop / width, crop / height
    size = max(1, int(width * scale_x + 1e-9)), max(1, int(height * scale_y + 1e-9))
    scaled = image.resize(size, Image.Resampling[about["interpolation"].upper()])
    colour = tuple(round(255 * mean) for mean in json.loads(about["mean"]))
    square = Image.new("RGB", (crop, crop), colour)
    margins = [-round((side - crop) / 2) if side > crop else (crop - side) // 2 for side in size]
    square.paste(scaled, tuple(margins))
    return np.asarray(square).transpose(2, 0, 1)
