"""The check of image files remembers what it found, so that the next one looks at new files only."""

import os
from pathlib import Path

import pytest
import torch
from lightkeeper.exact._errors import UnreadableFileError
from lightkeeper.images import _check as check
from lightkeeper.images._check import check_files
from lightkeeper.images._decode import check_image
from PIL import Image

from tests.image_files import noise, turned, write_folder
from tests.stubs import Files


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    root = write_folder(tmp_path / "images", {"a": 6, "b": 5})
    noise(20, 10).save(root / "b" / "turned.jpg", exif=turned(6))
    return root


@pytest.fixture
def looked_at(monkeypatch):
    names: list[str] = []

    def look(file: Path, bands: None) -> tuple[int, int]:
        names.append(file.name)
        return check_image(file, bands)

    monkeypatch.setattr(check, "check_image", look)
    return names


def record():
    (found,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("*.checked.npy")
    return found


def start(root):
    """The row of every file, but for the hash of its name."""
    paths = sorted(map(str, root.rglob("*.jpg")))
    _, rows = check_files(paths, root)
    return {path: row[1:] for path, row in zip(paths, rows.tolist(), strict=True)}


def by_hand(root):
    """What PIL alone says of the whole files."""
    found = {}
    for file in root.rglob("*.jpg"):
        with Image.open(file) as image:
            size = image.size[::-1] if file.name == "turned.jpg" else image.size
        found[str(file)] = (file.stat().st_size, file.stat().st_mtime_ns, *size)
    return found


def test_a_second_check_opens_only_new_and_changed_files(root, looked_at):
    for _ in range(2):
        assert start(root) == by_hand(root)
        assert len(looked_at) == 12
    looked_at.clear()
    noise(50, 40).save(root / "a" / "new.jpg")
    noise(60, 40).save(root / "a" / "image 1.jpg")
    os.utime(root / "b" / "image 2.jpg", ns=(0, 1))
    (root / "a" / "image 0.jpg").unlink()
    assert start(root) == by_hand(root)
    assert sorted(looked_at) == ["image 1.jpg", "image 2.jpg", "new.jpg"]
    looked_at.clear()
    start(root)
    assert looked_at == []


def test_a_broken_file_is_named_at_every_start_and_leaves_the_record_alone(root):
    broken = root / "a" / "image 3.jpg"
    broken.write_bytes(broken.read_bytes()[:-100])
    start(root)
    written = record().stat().st_mtime_ns, record().stat().st_ino
    for _ in range(2):
        with pytest.raises(
            UnreadableFileError, match=r"1 of 12 files cannot be read as images: '.*image 3\.jpg'"
        ):
            Files(str(root)).prepare_data()
    assert (record().stat().st_mtime_ns, record().stat().st_ino) == written


def test_a_record_that_cannot_be_read_is_made_anew(root, looked_at):
    start(root)
    whole = record().read_bytes()
    for damaged in (b"", whole[:-1]):
        record().write_bytes(damaged)
        looked_at.clear()
        assert start(root) == by_hand(root)
        assert len(looked_at) == 12
        assert record().read_bytes() == whole
        assert len(list(record().parent.iterdir())) == 1


def test_many_files_are_checked_by_processes_with_the_same_result(root, monkeypatch):
    monkeypatch.setattr(check, "_WORTH_PROCESSES", 2)
    monkeypatch.setattr(check, "_AT_ONCE", 5)
    monkeypatch.setattr(check, "usable_cores", lambda: 2)
    (root / "a" / "image 3.jpg").write_bytes(b"")
    drawn = torch.get_rng_state()
    facts = start(root)
    # or the first run would train otherwise than the second
    assert torch.equal(torch.get_rng_state(), drawn)
    assert facts.pop(str(root / "a" / "image 3.jpg"))[0] == -1
    (root / "a" / "image 3.jpg").unlink()
    assert facts == by_hand(root)
