"""Looking at image files before training: quickly for what is broken, thoroughly for what they are."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from PIL import Image
from torch import Tensor

from ..errors import UnreadableFileError, UserError, listed
from ..hardware import usable_cores
from ..run.progress import counting
from .decode import check_image, decode, has_16_bits, is_turned, named, open_image, reason
from .holes import has_hole

_AT_ONCE = 512  # files that wait for a thread; as many results wait to be taken
_ANIMATED = ("AVIF", "GIF", "PNG", "TIFF", "WEBP")  # not a camera's JPEG, whose second image is a preview

T = TypeVar("T")


class Facts(NamedTuple):
    """What a file holds.

    Attributes:
        defect: Why it cannot be read, and then the rest is empty; None where it can.
        format: What it is, whatever it is called, as in ``"JPEG"``.
        mode: PIL's name of its kind of pixels, as in ``"RGB"``.
        width: Of the upright image, in pixels.
        height: Of the upright image, in pixels.
        animated: Whether it has more frames or pages, of which training sees the first.
        turned: Whether the EXIF data say that the stored image is not upright.
        content: A hash of the file's bytes.
        pixels: A hash of the upright image in RGB, as training sees it.
        brightest: Of pixels that are stored with 16 bits, the largest value on the 0-255 scale; 255 for all others.
        hole: Whether a part of the compressed pixels is zeros, as where it was never written.
    """

    defect: str | None
    format: str = ""
    mode: str = ""
    width: int = 0
    height: int = 0
    animated: bool = False
    turned: bool = False
    content: bytes = b""
    pixels: bytes = b""
    brightest: int = 255
    hole: bool = False


def in_threads(
    look: Callable[[Path], T], files: Sequence[Path], text: str, threads: int | None = None, visible: bool = True
) -> Iterator[T]:
    """Applies a function to files, and says how far it is where that takes longer.

    Args:
        look: What to do with each; PIL lets go of Python's lock while it decodes.
        files: The files.
        text: What is being done, beside the bar.
        threads: How many files are looked at at once; by default what ``ThreadPoolExecutor`` chooses.
        visible: Whether to say how far it is.

    Returns:
        The results in the order of the files.
    """
    with counting(len(files), text, visible) as advance, ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(files), _AT_ONCE):  # ``map`` takes in everything at once, and sets can be huge
            for result in pool.map(look, files[first : first + _AT_ONCE]):
                advance(1)
                yield result


def few(broken: Mapping[Path, str]) -> str:
    """Names the first of some broken files, with the reasons, and counts the others."""
    return listed((f"'{file}' ({why})" for file, why in broken.items()), 3)


def leave_out(splits: dict[str, dict[str, list[Path]]], broken: Mapping[Path, str]) -> dict[str, dict[str, list[Path]]]:
    """Takes broken files out of splits and lets the others stay where they are.

    Args:
        splits: The files of each class in each split.
        broken: The files to leave out, with the reasons.

    Raises:
        UserError: A class has nothing left to train on, or a split has nothing left.
    """
    left = {
        split: {name: [file for file in files if file not in broken] for name, files in classes.items()}
        for split, classes in splits.items()
    }
    for name, files in left["train"].items():
        if not files:
            raise UserError(f"class '{name}' has no training image that can be read: {few(broken)}")
    for split, classes in left.items():
        if not any(classes.values()):
            raise UserError(f"{split} has no image that can be read: {few(broken)}")
    return left


def read_facts(files: Sequence[Path]) -> Iterator[Facts]:
    """Decodes each file in full; the facts come in the order of the files."""
    # each thread holds a decoded image, so no more of them than can work
    return in_threads(_facts, files, "reading images", threads=usable_cores())


def _facts(file: Path) -> Facts:
    try:
        check_image(file)
        with open_image(file) as image, named(file):
            deep = has_16_bits(image)  # before PIL looks for EXIF data, which in a PNG may be behind the pixels
            turned = is_turned(image)
            format_, mode = image.format or "", image.mode
            pixels = decode(image, file)
            data = file.read_bytes()
            animated = format_ in _ANIMATED and _has_more_frames(image)
    except UnreadableFileError as error:
        return Facts(reason(error))
    height, width = pixels.shape[1:]
    hashes = _hash(data).digest(), _hash_of_pixels(pixels)
    brightest = int(pixels.max()) if deep else 255
    return Facts(None, format_, mode, width, height, animated, turned, *hashes, brightest, has_hole(data, format_))


def _hash(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=16)


def _hash_of_pixels(pixels: Tensor) -> bytes:
    """Hashes the size and the pixels."""
    hashed = _hash(repr(tuple(pixels.shape)).encode())
    hashed.update(pixels.permute(1, 2, 0).contiguous().numpy().data)  # without a copy, as panoramas are large
    return hashed.digest()


def _has_more_frames(image: Image.Image) -> bool:
    try:
        with named("the second frame"):
            return bool(getattr(image, "is_animated", False))
    except UnreadableFileError:  # of no consequence to training
        return True
