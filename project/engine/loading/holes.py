"""Parts of a compressed image that were never written: what no decoder complains of, as zeros are pixels too."""

_HOLE = bytes(64)  # compressed pixels hardly have so many zeros in a row, unless most of an image is of one colour
_START_OF_SCAN, _END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
_WEBP_PIXELS = (b"VP8 ", b"VP8L", b"ALPH", b"ANMF")


def has_hole(data: bytes, format_: str) -> bool:
    """Whether there is a long run of zeros among the compressed pixels of a JPEG or WebP file.

    Args:
        data: The file, which can be decoded.
        format_: What it is, as PIL calls it; of other formats nothing is known.
    """
    if format_ in ("JPEG", "MPO"):
        start = _first_scan(data)
        return data.find(_HOLE, start, data.find(_END_OF_IMAGE, start)) >= 0
    return format_ == "WEBP" and _hole_in_webp(data)


def _first_scan(data: bytes) -> int:
    """Where the pixels start, behind metadata, which may have thumbnails and padding."""
    position = 2
    while data[position : position + 2] != _START_OF_SCAN and position < len(data):
        filled = data[position + 1 : position + 2] == b"\xff"  # any number of these may be in front of a marker
        position += 1 if filled else 2 + int.from_bytes(data[position + 2 : position + 4])
    return position


def _hole_in_webp(data: bytes) -> bool:
    position = 12
    while position < len(data):
        end = position + 8 + int.from_bytes(data[position + 4 : position + 8], "little")
        if data[position : position + 4] in _WEBP_PIXELS and data.find(_HOLE, position, end) >= 0:
            return True
        position = end + end % 2
    return False
