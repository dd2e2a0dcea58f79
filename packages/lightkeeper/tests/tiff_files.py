"""Writes TIFF files of any depth by hand, as PIL and tifffile write few of them."""

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.int64]]
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
STRIPS, ORIENTATION, CHANNELS, ROWS, LENGTHS, PLANES, PREDICTOR = 273, 274, 277, 278, 279, 284, 317
PALETTE, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_LENGTHS = 320, 322, 323, 324, 325
INKS, EXTRA, SAMPLE_FORMAT, SUBSAMPLING = 332, 338, 339, 530
DEFLATE = 8


def write_tiff(
    path: Path,
    values: Array,
    bits: int,
    photometric: int,
    order: str = "<",
    rows: int = 0,
    tile: tuple[int, int] | None = None,
    tags: Mapping[int, int | list[int]] | None = None,
) -> Path:
    """Writes integers, (height, width, channels), as strips of so many rows, or as tiles.

    ``tags`` are more tags, which say how they are stored.
    """
    height, width, channels = values.shape
    more = {
        tag: value if isinstance(value, list) else [value] for tag, value in (tags or {}).items()
    }
    planes = np.split(values, channels, 2) if more.get(PLANES) == [2] else [values]
    down, across = tile or (rows or height, width)
    blocks = [
        plane[top : top + down, left : left + across]
        for plane in planes
        for top in range(0, height, down)
        for left in range(0, width, across)
    ]
    if tile:
        blocks = [
            np.pad(block, [(0, down - len(block)), (0, across - block.shape[1]), (0, 0)])
            for block in blocks
        ]
    parts = [stored(block, bits, order, more) for block in blocks]
    lengths = [len(part) for part in parts]
    at: list[int] = (8 + np.cumsum([0, *lengths])).tolist()
    entries: dict[int, list[int]] = {WIDTH: [width], HEIGHT: [height], BITS: [bits] * channels}
    entries |= {PHOTOMETRIC: [photometric], CHANNELS: [channels], **more}
    if tile:
        entries |= {TILE_WIDTH: [across], TILE_HEIGHT: [down], TILES: at[:-1]}
        entries[TILE_LENGTHS] = lengths
    else:
        entries |= {STRIPS: at[:-1], ROWS: [down], LENGTHS: lengths}
    directory, behind = b"", b""
    end = at[-1] + 2 + 12 * len(entries) + 4
    for tag, numbers in sorted(entries.items()):
        is_long = tag in (STRIPS, LENGTHS, TILES, TILE_LENGTHS)
        data = struct.pack(f"{order}{len(numbers)}{'I' if is_long else 'H'}", *numbers)
        if len(data) > 4:
            data, behind = struct.pack(f"{order}I", end + len(behind)), behind + data
        directory += struct.pack(f"{order}HHI", tag, 4 if is_long else 3, len(numbers))
        directory += data.ljust(4, b"\0")
    head = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, at[-1])
    count = struct.pack(f"{order}H", len(entries))
    path.write_bytes(head + b"".join(parts) + count + directory + bytes(4) + behind)
    return path


def stored(block: Array, bits: int, order: str, tags: Mapping[int, list[int]]) -> bytes:
    if tags.get(PREDICTOR) == [2]:
        block = np.diff(block, axis=1, prepend=0)
    block = (block % 2**bits).reshape(len(block), -1)
    if bits in (8, 16, 32):
        data = block.astype(f"{order}u{bits // 8}").tobytes()
    else:  # each row begins with a byte
        ones = block[..., None] >> np.arange(bits)[::-1] & 1
        data = np.packbits(ones.reshape(len(block), -1).astype(np.uint8), axis=1).tobytes()
    if tags.get(FILL_ORDER) == [2]:
        turned = np.unpackbits(np.frombuffer(data, np.uint8)).reshape(-1, 8)[:, ::-1]
        data = np.packbits(turned).tobytes()
    return zlib.compress(data) if tags.get(COMPRESSION) == [DEFLATE] else data
