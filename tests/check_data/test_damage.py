"""Files that cannot be read, or not as they are, are named by ``python -m project.check_data``."""

import random
import struct
import zlib

import numpy as np
from PIL import Image

from tests.check_data.conftest import rows
from tests.engine.loading.image_files import (
    cut_before_the_end,
    damage_deep_inside,
    noise,
    png_chunk,
    shortened,
    smooth,
    zeroed,
)


def png(colours):
    """A PNG file of 16-bit colours, which PIL does not write; big-endian (height, width, 3)."""
    height, width, _ = colours.shape
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in colours))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        png_chunk(kind, data) for kind, data in ((b"IHDR", header), (b"IDAT", content), (b"IEND", b""))
    )


def test_every_unreadable_file_is_named_even_where_only_decoding_tells(root, inspected):
    (root / "rose" / "empty.jpg").touch()
    (root / "rose" / "text.jpg").write_text("no image")
    (root / "rose" / "gone.jpg").symlink_to("nowhere")
    damage_deep_inside(root / "daisy" / "deep.png")
    code, found, printed = inspected(root)
    reasons = {entry["file"]: entry["reason"] for entry in found["unreadable"]}
    assert code == 1
    assert set(reasons) == {f"rose/{name}.jpg" for name in ("empty", "text", "gone")} | {"daisy/deep.png"}
    assert reasons["rose/text.jpg"] == "not an image"
    assert all(f"{file} ({reason})" in printed.out for file, reason in reasons.items())
    assert printed.err.splitlines()[-1] == f"error: {found['refusal']}"
    assert found["refusal"].startswith("4 of 34 files cannot be read")
    assert "--data.on_bad_image skip" in found["refusal"]
    assert "project.fit" not in printed.out


def test_jpeg_and_webp_files_with_a_part_missing_are_named(root, inspected):
    for suffix in ("jpg", "webp"):
        path, dice = root / "daisy" / f"new.{suffix}", random.Random(0)
        noise(400, 300).save(path, quality=60)
        whole = path.read_bytes()
        (root / "rose" / f"cut.{suffix}").write_bytes(cut_before_the_end(whole, dice))
        (root / "rose" / f"short.{suffix}").write_bytes(shortened(whole, dice, 4096))
        (root / "rose" / f"zeroed.{suffix}").write_bytes(zeroed(whole, dice, 4096))
    code, found, printed = inspected(root)
    unreadable = {entry["file"]: entry["reason"] for entry in found["unreadable"]}
    holes = {entry["file"] for entry in found["holes"]}
    assert code == 1
    assert {f"rose/{kind}.{suffix}" for kind in ("cut", "short") for suffix in ("jpg", "webp")} <= set(unreadable)
    assert {f"rose/zeroed.{suffix}" for suffix in ("jpg", "webp")} <= set(unreadable) | holes
    assert "rose/zeroed.webp" in holes  # of which no decoder complains
    assert "premature end of data" in unreadable["rose/cut.jpg"]
    assert all(file.startswith("rose/") for file in holes.union(unreadable))
    assert ["perhaps", "damaged", str(len(holes))] in rows(printed.out)
    assert "rose/zeroed.webp (zeros inside" in printed.out


def test_padding_in_metadata_is_no_damage(root, inspected):
    padding = Image.Exif()
    padding[0xEA1C] = bytes(2000)  # room that Windows leaves
    for suffix in ("jpg", "webp"):
        smooth(40, 30).save(root / "rose" / f"padded.{suffix}", exif=padding)
        assert bytes(2000) in (root / "rose" / f"padded.{suffix}").read_bytes()
    _, found, _ = inspected(root)
    assert (found["unreadable"], found["holes"]) == ([], [])


def test_of_16_bits_that_hold_fewer_is_warned(root, inspected):
    values = np.random.default_rng(0).integers(0, 2**12, (30, 40), dtype=np.uint16)
    for suffix in ("png", "tif"):
        Image.fromarray(values).save(root / "rose" / f"12 bits.{suffix}")
        Image.fromarray(values << 4).save(root / "rose" / f"16 bits.{suffix}")
        Image.fromarray((values >> 8).astype(np.uint8)).save(root / "rose" / f"dark.{suffix}")
    colours = np.stack([values] * 3, axis=-1).astype(">u2")
    (root / "daisy" / "colours.png").write_bytes(png(colours))
    code, found, printed = inspected(root)
    assert {entry["file"]: entry["brightest"] for entry in found["dark"]} == {
        "daisy/colours.png": 15,
        "rose/12 bits.png": 15,
        "rose/12 bits.tif": 15,
    }
    assert code == 0
    assert ["nearly", "black", "3"] in rows(printed.out)
    assert "rose/12 bits.png (its brightest pixel is 15 of 255" in printed.out


def test_of_many_unreadable_files_the_table_lists_some_and_counts_all(root, inspected):
    for number in range(25):
        (root / "rose" / f"bad {number}.jpg").touch()
    _, found, printed = inspected(root)
    assert ["unreadable", "25"] in rows(printed.out)
    assert printed.out.count("(not an image)") == 10
    assert "and 15 more" in printed.out
    assert len(found["unreadable"]) == 25


def test_where_skipping_would_not_help_it_is_not_offered(root, inspected):
    for file in (root / "rose").iterdir():
        file.write_bytes(b"")
    code, found, _ = inspected(root)
    assert code == 1
    assert "class 'rose' has no training image that can be read" in found["refusal"]
    assert "on_bad_image" not in found["refusal"]
