"""Which files a folder and a list stand for, and in which order."""

import os

from project.engine.loading.paths import image_paths, listed_paths


def paths(*named) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    return list(image_paths(map(str, named), notes.append)), notes


def test_folders_are_listed_sorted_at_any_depth(tmp_path):
    for name in (
        "b/2.JPG",
        "b/10.png",
        "a/z/1.webp",
        "a.jpg",
        "b.txt",
        ".hidden/1.jpg",
        "c/.git/2.jpg",
        "__MACOSX/b/2.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, notes = paths(tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in found] == ["a/z/1.webp", "a.jpg", "b/10.png", "b/2.JPG"]
    assert not notes


def test_what_is_named_is_listed_whatever_it_is(tmp_path):
    (tmp_path / "notes.txt").touch()
    named = [str(tmp_path / "notes.txt"), str(tmp_path / "missing"), str(tmp_path / "notes.txt")]
    assert paths(*named) == (named, [])


def test_links_are_followed_unless_they_lead_back_up(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jpg").touch()
    (tmp_path / "in" / "deep" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "aside").symlink_to(tmp_path / "other")
    (tmp_path / "in" / "dead.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "self.jpg").symlink_to("self.jpg")
    found, notes = paths(tmp_path / "in")
    assert [os.path.relpath(path, tmp_path / "in") for path in found] == ["aside/1.jpg", "dead.jpg", "self.jpg"]
    assert len(notes) == 1
    assert "deep/up' leads back to a folder that it is in" in notes[0]


def test_a_named_pipe_in_a_folder_is_no_image(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    assert paths(tmp_path) == ([], [])


def read(content: bytes) -> list[str]:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    with open(reading, "rb") as stream:
        return list(listed_paths(stream))


def test_lists_have_a_path_a_line_or_nul_between_paths():
    assert read(b"a b.jpg\n\n\xff.jpg\nlast") == ["a b.jpg", "\udcff.jpg", "last"]
    assert read(b"two\nlines.jpg\0b.jpg\0") == ["two\nlines.jpg", "b.jpg"]
    assert read(b"") == []


def test_a_list_is_read_as_it_comes():
    reading, writing = os.pipe()
    with open(reading, "rb") as stream:
        found = listed_paths(stream)
        for name in ("first", "second"):
            os.write(writing, f"{name}\n".encode())
            assert next(found) == name
        os.close(writing)
        assert list(found) == []
