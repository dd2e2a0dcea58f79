"""Files of any depth: each becomes the picture that its numbers are, or is refused."""

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.exact._errors import LocalError, UnreadableFileError
from lightkeeper.images._decode import check_image, read_bands, upright_pixels
from PIL import Image

from tests.image_files import decoded, noise, save
from tests.stubs import cases
from tests.tiff_files import (
    COMPRESSION,
    DEFLATE,
    EXTRA,
    FILL_ORDER,
    INKS,
    ORIENTATION,
    PALETTE,
    PLANES,
    PREDICTOR,
    SAMPLE_FORMAT,
    SUBSAMPLING,
    Array,
    write_tiff,
)

WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, INDEX, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
Y, X = np.mgrid[0:21, 0:37]
SHARES = np.stack([X / 36, Y / 20, (X + Y) % 20 / 19, 1 - X / 36], 2)  # black and white, too
COLOURS = np.random.default_rng(0).integers(0, 256, (256, 3))
RANDOM = np.random.default_rng(0)
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"rows": 5},
    {"tile": (16, 32)},
    {"rows": 5, "tags": {COMPRESSION: DEFLATE}},
    {"tags": {COMPRESSION: DEFLATE, PREDICTOR: 2}},
]
RIGHT = [  # photometric, channels and bits that are read from interleaved numbers
    *((photometric, 1, bits) for photometric in (0, 1) for bits in (1, 2, 4, 8)),
    *((INDEX, 1, bits) for bits in (1, 2, 4, 8)),
    *((BLACK_IS_ZERO, 1, 12), (BLACK_IS_ZERO, 1, 16), (WHITE_IS_ZERO, 1, 16)),
    *((RGB, channels, bits) for channels in (3, 4) for bits in (8, 16)),
    *((CMYK, 4, 8), (CMYK, 4, 16)),
]


def numbers(channels: int, bits: int) -> Array:
    return np.round(SHARES[..., :channels] * (2**bits - 1)).astype(np.int64)


def picture(values: Array, bits: int, photometric: int) -> Array:
    """Calculates the RGB values of stored numbers, as TIFF 6.0 explains them."""
    if photometric == INDEX:
        return COLOURS[values[..., 0]]
    shares = values / (2**bits - 1)
    if photometric == CMYK:
        shares = (1 - shares[..., :3]) * (1 - shares[..., 3:])
    elif photometric == WHITE_IS_ZERO:
        shares = 1 - shares
    return np.round(255 * np.broadcast_to(shares[..., :3], (*values.shape[:2], 3))).astype(np.int64)


def seen(path: Path) -> Array | None:
    try:
        return decoded(path).permute(1, 2, 0).numpy().astype(np.int64)
    except UnreadableFileError:
        return None


def tiff(path: Path, values: Array, bits: int, photometric: int, **options: Any) -> Path:
    tags = dict(options.pop("tags", {}))
    if photometric == INDEX:
        scale = tags.get(PALETTE, 257)
        tags[PALETTE] = (scale * COLOURS[: 2**bits].T).ravel().tolist()
    if values.shape[2] == 4 and photometric == RGB:
        tags[EXTRA] = 2
    return write_tiff(path, values, bits, photometric, tags=tags, **options)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # PIL's of unknown kinds
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", "<>")
def test_a_tiff_of_any_depth_is_its_picture_or_is_refused(tmp_path, capfd, layout, order):
    outcomes: Counter[tuple[str, Any]] = Counter()
    kinds = [(0, 1), (1, 1), (1, 2), (2, 3), (2, 4), (3, 1), (5, 4)]
    bits_of = (1, 2, 4, 6, 8, 10, 12, 14, 16)
    for (photometric, channels), bits, planes, fill in itertools.product(
        kinds, bits_of, (1, 2), (1, 2)
    ):
        tags = {**layout.get("tags", {}), PLANES: planes, FILL_ORDER: fill}
        if (fill == 2 and COMPRESSION in tags) or (photometric == INDEX and bits > 8):
            continue
        values = numbers(channels, bits)
        path = tiff(
            tmp_path / "image.tif",
            values,
            bits,
            photometric,
            order=order,
            **{**layout, "tags": tags},
        )
        pixels, kind = seen(path), (photometric, channels, bits)
        outcomes[("right" if pixels is not None else "refused"), kind] += 1
        if pixels is not None:
            rounding = 2 if photometric == CMYK else 1  # two roundings
            difference = np.abs(pixels - picture(values, bits, photometric)).max()
            assert difference <= rounding, (kind, planes, fill)
        elif (planes, fill) == (1, 1) and PREDICTOR not in tags:
            big_endian = kind in [(BLACK_IS_ZERO, 1, 12), (WHITE_IS_ZERO, 1, 16)] and order == ">"
            assert kind not in RIGHT or big_endian, kind  # which PIL does not know
    assert {kind for outcome, kind in outcomes if outcome == "right"} - {(1, 2, 8)} <= {*RIGHT}
    assert outcomes["right", (RGB, 3, 8)] >= 2  # separate channels, too


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_a_turned_tiff_of_any_depth_is_upright(tmp_path, bits, turn, layout):
    values = numbers(1, bits)
    tags = {**layout.get("tags", {}), ORIENTATION: turn}
    path = write_tiff(tmp_path / "image.tif", values, bits, 1, **{**layout, "tags": tags})
    expected: Array = picture(values, bits, 1)
    if turn > 4:
        expected = expected.transpose(1, 0, 2)
    upside: dict[int, Callable[[Array], Array]] = {
        **dict.fromkeys((2, 6), np.fliplr),
        **dict.fromkeys((4, 8), np.flipud),
        **dict.fromkeys((3, 7), lambda image: np.flipud(np.fliplr(image))),
    }
    expected = upside.get(turn, lambda image: image)(expected)
    assert check_image(path) == expected.shape[1::-1]
    assert np.abs(decoded(path).permute(1, 2, 0).numpy() - expected).max() <= 1


@cases(
    "photometric bits channels tags why",
    (BLACK_IS_ZERO, 8, 1, {SAMPLE_FORMAT: 2}, "its pixels are signed"),
    (BLACK_IS_ZERO, 16, 1, {SAMPLE_FORMAT: 2}, "its pixels are signed"),
    (BLACK_IS_ZERO, 32, 1, {SAMPLE_FORMAT: 3}, "its pixels have 32 bits"),
    (
        BLACK_IS_ZERO,
        14,
        1,
        {},
        "its TIFF header is damaged, or its channels or bits .* Pillow lacks",
    ),
    (CMYK, 8, 4, {INKS: 2}, "its inks are not CMYK"),
    (YCBCR, 8, 3, {}, "its colours are subsampled"),
    (RGB, 16, 3, {PLANES: 2}, "its channels are stored separately"),
    (YCBCR, 8, 3, {PLANES: 2, SUBSAMPLING: [1, 1]}, "its channels are stored separately"),
    (LAB, 8, 3, {PLANES: 2}, "its channels are stored separately"),
    (LAB, 8, 3, {PLANES: 2, COMPRESSION: DEFLATE}, "its channels are stored separately"),
    (INDEX, 8, 1, {PALETTE: 1}, "its palette has 8 bits"),
)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_tiff_that_pillow_would_read_as_another_picture_is_refused(
    tmp_path, photometric, bits, channels, tags, why
):
    path = tiff(tmp_path / "image.tif", numbers(channels, bits), bits, photometric, tags=tags)
    with pytest.raises(UnreadableFileError, match=rf"image\.tif' cannot be .* \({why}"):
        decoded(path)


def test_a_data_set_that_opens_tiff_files_itself_has_the_same_pixels(tmp_path):
    path = write_tiff(tmp_path / "image.tif", numbers(1, 16), 16, WHITE_IS_ZERO, tags={})
    with Image.open(path) as image:
        assert torch.equal(upright_pixels(image), decoded(path))


@pytest.mark.parametrize("maxval", [1, 15, 255, 1023, 4095, 65535])
@pytest.mark.parametrize("kind", [b"P2", b"P3", b"P5", b"P6"])
def test_pnm_files_of_any_greatest_value_are_their_picture(tmp_path, kind, maxval):
    values = np.round(SHARES[..., : 3 if kind in (b"P3", b"P6") else 1] * maxval).astype(np.int64)
    binary = values.astype(np.uint8 if maxval < 256 else ">u2").tobytes()
    text = " ".join(map(str, values.ravel())).encode()
    path = tmp_path / "image.ppm"
    path.write_bytes(b"%s 37 21 %d\n" % (kind, maxval) + (text if kind < b"P4" else binary))
    expected = np.round(255 * np.broadcast_to(values / maxval, (21, 37, 3)))
    assert np.abs(decoded(path).permute(1, 2, 0).numpy() - expected).max() <= 1


def test_16_bit_grey_png_and_jpeg_2000_keep_their_upper_bits(tmp_path):
    values = numbers(1, 16)[..., 0]
    for suffix in ("png", "jp2"):
        path = save(Image.fromarray(values.astype(np.uint16)), tmp_path / f"image.{suffix}")
        assert torch.equal(decoded(path), torch.from_numpy(values >> 8).expand(3, -1, -1))


@pytest.mark.parametrize("bits", [1, 4, 12, 16])
@pytest.mark.parametrize("read", [decoded, lambda path: read_bands(path, (3, 8))])
def test_jpeg_2000_in_colour_of_other_bits_is_refused(tmp_path, bits, read):
    """Of more than 8, PIL turns the brightest pixels black; of fewer, white is not white."""
    path = save(noise(40, 30), tmp_path / "image.jp2")
    data = bytearray(path.read_bytes())
    data[data.index(b"\xff\x4f\xff\x51") + 42] = bits - 1
    path.write_bytes(data)
    with pytest.raises(UnreadableFileError, match=rf"\(its pixels have {bits} bits; save it"):
        read(path)


@cases(
    "photometric bits tags why",
    (WHITE_IS_ZERO, 8, {}, "0 for white"),
    (WHITE_IS_ZERO, 16, {}, "0 for white"),
    (INDEX, 8, {}, "it has a palette"),
    (BLACK_IS_ZERO, 4, {}, "its pixels have 4 bits"),
    (BLACK_IS_ZERO, 12, {}, "its pixels have 12 bits"),
)
@pytest.mark.parametrize("suffix", ["tif", "png"])  # whatever it is called
def test_bands_of_a_tiff_are_brightness_or_refused(tmp_path, photometric, bits, tags, why, suffix):
    pytest.importorskip("tifffile", reason="of the extra tiff, which reads such files")
    path = tiff(tmp_path / f"image.{suffix}", numbers(1, bits), bits, photometric, tags=tags)
    with pytest.raises(UnreadableFileError, match=why):
        read_bands(path, (1, 16 if bits > 8 else 8))


def test_a_package_that_few_images_need_is_named_with_the_image(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)  # as where it is not installed
    path = tiff(tmp_path / "image.tif", numbers(1, 8), 8, BLACK_IS_ZERO)
    with pytest.raises(LocalError, match=r"image\.tif' needs the package tifffile: pip install"):
        read_bands(path, (1, 8))


@cases(
    "ending shape bits",
    *(("npy", (20, 30), 8), ("npy", (20, 30, 7), 16), ("png", (20, 30), 8), ("png", (20, 30), 16)),
    *(
        ("png", (20, 30, 2), 8),
        ("png", (20, 30, 4), 8),
        ("png", (20, 30, 3), 16),
        ("png", (20, 30, 4), 16),
    ),
    *(("tif", (20, 30), 16), ("tif", (20, 30, 5), 16)),
)
def test_images_are_read_as_they_are_stored(tmp_path, ending, shape, bits):
    path, image = (
        tmp_path / f"image.{ending}",
        RANDOM.integers(0, 2**bits, shape).astype(f"uint{bits}"),
    )
    if ending == "npy":
        np.save(path, image)
    elif ending == "tif":
        tifffile = pytest.importorskip(
            "tifffile", reason="of the extra tiff, which reads such files"
        )
        tifffile.imwrite(
            path, image, photometric="minisblack", planarconfig="contig" if image.ndim > 2 else None
        )
    elif (bits, image.ndim) == (16, 3):
        imagecodecs = pytest.importorskip("imagecodecs", reason="of the extra tiff, as tifffile")
        path.write_bytes(imagecodecs.png_encode(image))
    else:
        Image.fromarray(image).save(path)
    found = read_bands(path, (shape[2] if len(shape) > 2 else 1, bits))
    np.testing.assert_array_equal(found.permute(1, 2, 0).reshape(shape), image)


def npy(header: str) -> bytes:
    return b"\x93NUMPY\1\0\x46\0" + header.encode().ljust(70)


ARRAYS: list[tuple[object, str]] = [
    (
        np.zeros((9, 9, 3), np.uint8),
        r"uint8 \(9, 9, 3\), not uint8 \(height, width, 4\); see the option",
    ),
    (np.zeros((9, 9, 4), np.uint16), r"uint16 \(9, 9, 4\), not uint8"),
    (np.zeros((1, 1001, 4), np.uint8), "one side is more than 1000 times"),
    (np.zeros((0, 0, 4), np.uint8), "one side is"),
    (np.array([{}]), "Python objects"),
    (npy("{'descr':'|u1','fortran_order':False,'shape':(2048,2048,4)}"), "file size"),
    (npy("{'descr':'|u1','fortran_order':False,'shape':(9,9,4)"), "cannot be read"),
    (b"no array", "magic string"),
]
TWELVE_BITS = b"P5 2 1 4095\n\x0f\xff\x01\x02"  # which PIL would clip to 8


@cases(
    "content complaint name bands",
    *((*row, "a.npy", (4, 8)) for row in ARRAYS),
    (TWELVE_BITS, "it is int32", "a.ppm", (1, 8)),
)
def test_what_is_no_such_image_is_refused_in_one_line(tmp_path, content, complaint, name, bands):
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else np.save(
        path, content, allow_pickle=True
    )
    with pytest.raises(UnreadableFileError, match=rf"^'[^\n]*{name}' [^\n]*{complaint}[^\n]*$"):
        read_bands(path, bands)
