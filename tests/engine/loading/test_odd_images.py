"""Image files as they really are: each is read, or refused by its name."""

import os
import zlib

import pytest
from PIL import Image

from project.engine.errors import UserError
from project.engine.loading.decode import MAX_PIXELS, check_image, open_image
from tests.engine.loading.image_files import (
    centre,
    centre_of,
    claiming_gif,
    claiming_png,
    difference,
    noise,
    png_chunk,
    save,
    smooth,
)


@pytest.mark.parametrize("suffix", ["gif", "webp", "png", "tif"])
def test_of_several_frames_or_pages_the_first_is_used(tmp_path, suffix):
    first, *others = (smooth(64, 48).rotate(angle) for angle in (0, 90, 180))
    path = save(first, tmp_path / f"image.{suffix}", save_all=True, append_images=others)
    check_image(path)
    assert difference(centre(path), centre_of(first, 36, 32)).mean() < 8
    assert difference(centre(path), centre_of(others[1], 36, 32)).mean() > 40


@pytest.mark.parametrize("shape", [(40000, 60), (60, 40000)], ids=str)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_panorama_is_read_from_its_centre(tmp_path, shape, suffix):
    path = save(smooth(*shape), tmp_path / f"image.{suffix}")
    assert difference(centre(path), centre_of(smooth(*shape), 36, 32)).mean() < 3


def test_a_photograph_of_a_hundred_megapixels_is_accepted(tmp_path):
    check_image(save(Image.new("1", (12000, 9000)), tmp_path / "image.png"))


@pytest.mark.parametrize("claim", [claiming_png, claiming_gif])
@pytest.mark.parametrize("size", [(60000, 60000), (MAX_PIXELS // 10000 + 1, 10000)], ids=str)
@pytest.mark.parametrize("read", [check_image, open_image])
def test_a_file_that_claims_too_many_pixels_is_refused_by_its_header(tmp_path, claim, size, read):
    path = tmp_path / "bomb.png"
    path.write_bytes(claim(*size))
    with pytest.raises(UserError, match=r"bomb\.png' cannot be read as an image \(Image size \(\d+ pixels\) exceeds"):
        read(path)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt"])
def test_a_text_that_unpacks_to_much_is_refused(tmp_path, kind):
    before_text = {b"zTXt": b"Comment\0\0", b"iTXt": b"Comment\0\1\0\0\0"}[kind]
    whole = save(noise(8, 8), tmp_path / "image.png").read_bytes()
    bomb = png_chunk(kind, before_text + zlib.compress(bytes(20_000_000)))
    (tmp_path / "image.png").write_bytes(whole[:33] + bomb + whole[33:])
    with pytest.raises(UserError, match=r"image\.png' cannot be read as an image \(Decompressed data too large"):
        check_image(tmp_path / "image.png")


def test_a_file_that_needs_another_program_is_refused(tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(UserError, match=r"image\.jpg' cannot be read as an image \(not an image\)"):
        check_image(path)


@pytest.mark.parametrize("mode", ["F", "I"])
@pytest.mark.parametrize("read", [check_image, open_image])
def test_pixels_of_32_bits_are_refused_rather_than_cut_off(tmp_path, mode, read):
    path = save(smooth(64, 48).convert(mode), tmp_path / "image.tif")
    with pytest.raises(UserError, match="32 bits"):
        read(path)


@pytest.mark.parametrize("read", [check_image, open_image])
def test_a_link_to_itself_is_refused_by_name(tmp_path, read):
    (tmp_path / "rose.jpg").symlink_to("rose.jpg")
    with pytest.raises(UserError, match=r"rose\.jpg' cannot be read as an image \(Too many levels of symbolic links\)"):
        read(tmp_path / "rose.jpg")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_must_not_be_read_is_refused_by_name(tmp_path):
    path = save(smooth(64, 48), tmp_path / "rose.jpg")
    path.chmod(0)
    with pytest.raises(UserError, match=r"rose\.jpg' cannot be read \(Permission denied\)"):
        check_image(path)


def test_a_name_with_a_line_break_makes_no_second_line(tmp_path):
    path = tmp_path / "a\nrose.jpg"
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"a\\nrose\.jpg' cannot") as caught:
        check_image(path)
    assert "\n" not in str(caught.value)
