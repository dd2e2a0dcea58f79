"""Which files of a folder are images of a class, whatever they are called and wherever links lead."""

import os
from io import BytesIO
from typing import Any

import pytest
from lightkeeper.images._decode import IMAGE_SUFFIXES
from lightkeeper.images._files import prepare
from lightkeeper.images._scan import image_paths, listed_paths
from PIL import Image
from torchvision.datasets import ImageFolder

from tests.image_files import noise, write_folder
from tests.stubs import Files, attached, by_class, paths_of

PREPROCESSING: Any = {"resize": 16, "crop": 16, "mean": [0.5] * 3, "std": [0.2] * 3}
NAMES = ["with space", "Größe", "向日葵", "μαργαρίτα", "100%", "a.b", "it's", "-x"]
NO_MAC = pytest.mark.skipif(os.uname().sysname == "Darwin", reason="macOS wants UTF-8")


@pytest.mark.parametrize("name", [*NAMES, pytest.param(os.fsdecode(b"Gr\xfcn"), marks=NO_MAC)])
def test_any_name_of_a_folder_or_a_file_will_do(tmp_path, name):
    root = write_folder(tmp_path / name, {name: 5, "other": 5})
    for file in sorted((root / name).iterdir()):
        file.rename(file.with_name(f"{name} {file.name}"))
    data = attached(Files(str(root)))
    text = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    assert sorted(data.class_names) == sorted([text, "other"])
    assert sum(map(len, data.splits.values())) == 10
    assert all(file.is_file() for file in paths_of(data.splits["train"]))


def test_files_at_any_depth_of_a_class_folder_are_those_that_torchvision_finds_but_for_those_of_systems(
    tmp_path,
):
    names = ("a", "a/field", "a/field/far/away", "a/field.jpg", "b", "b/field", "only below/sub")
    root = write_folder(tmp_path, dict.fromkeys(names, 3))
    expected = ImageFolder(str(root))
    for name in (".git", "__MACOSX", "@eaDir", "#recycle", "$Recycle.Bin", "~syncthing~x"):
        write_folder(root, dict.fromkeys((f"{name}/a", f"a/{name}", f"a/field/{name}"), 2))
    data = Files(str(root))
    assert data.class_names == expected.classes
    ours = [(file.path, data.class_names.index(file.label)) for file in data.files()]
    assert sorted(ours) == sorted(expected.samples)  # each in one split
    assert all(classes.keys() == {*expected.classes} for classes in by_class(data).values())


def paths(*named) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    return list(image_paths(map(str, named), notes.append)), notes


def test_folders_are_listed_sorted_at_any_depth_and_what_is_left_out_is_counted(tmp_path):
    images = ["a.jpg", "a/z/1.webp", "b/10.png", "b/2.JPG", "b/c/3.jfif"]
    hidden = [".hidden/1.jpg", "c/.git/2.jpg", "__MACOSX/b/2.jpg", "._a.jpg", "b/.DS_Store"]
    for name in (*images[::-1], *hidden, "b/1.heic", "b/2.HEIC", "notes.txt", "README"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, notes = paths(tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in found] == images
    assert notes == ["files left out: 2 .heic, 1 without a suffix and 1 .txt"]


def test_the_formats_are_read_whatever_a_file_is_called(tmp_path):
    """All that PIL lists of these formats, but for .pfm: its pixels have no range."""
    known = {"AVIF", "BMP", "GIF", "JPEG", "MPO", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP"}
    listed = {suffix for suffix, name in Image.registered_extensions().items() if name in known}
    assert listed - {".pfm"} == IMAGE_SUFFIXES
    for suffix in IMAGE_SUFFIXES:
        noise(40, 30).save(tmp_path / f"image{suffix}")
        assert prepare(tmp_path / f"image{suffix}", PREPROCESSING).shape == (3, 16, 16)


def test_links_are_followed_unless_they_lead_back_up(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jpg").touch()
    (tmp_path / "in" / "deep" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "aside").symlink_to(tmp_path / "other")
    (tmp_path / "in" / "dead.jpg").symlink_to(tmp_path / "nowhere")
    found, notes = paths(tmp_path / "in")
    assert [os.path.relpath(path, tmp_path / "in") for path in found] == ["dead.jpg", "aside/1.jpg"]
    assert not notes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a b.jpg\n\n\xff.jpg\nlast", ["a b.jpg", "\udcff.jpg", "last"]),
        (b"two\nlines.jpg\0b.jpg\0", ["two\nlines.jpg", "b.jpg"]),
        (b"\xef\xbb\xbfa.jpg\r\nb.jpg\r\n", ["a.jpg", "b.jpg"]),
        ("a.jpg\r\nü.jpg".encode("utf-16"), ["a.jpg", "ü.jpg"]),  # of PowerShell
        (b"", []),
    ],
)
def test_lists_have_a_path_a_line_or_nul_between_paths(text, expected):
    assert listed_paths(BytesIO(text)) == expected
