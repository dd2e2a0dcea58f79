"""What a start remembers of the image files, so that the next one looks at new files only."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from project.data import FolderDataModule
from project.engine.errors import UnreadableFileError
from project.engine.loading import checked
from project.engine.loading.checked import Header, read_headers, record_of
from project.engine.loading.decode import check_image
from tests.engine.loading.image_files import noise, write_folder


@pytest.fixture
def root(tmp_path):
    root = write_folder(tmp_path / "images", {"a": 6, "b": 5})
    exif = Image.Exif()
    exif[0x0112] = 6  # the image lies on its side
    noise(20, 10).save(root / "b" / "turned.jpg", exif=exif)
    for file in files_in(root):
        age(file)
    return root


@pytest.fixture
def looked_at(monkeypatch):
    """The names of the files that are opened."""
    names: list[str] = []

    def look(file: Path) -> None:
        names.append(file.name)
        check_image(file)

    monkeypatch.setattr(checked, "check_image", look)
    return names


def age(file, seconds=3600):
    """Lets a file have been changed so long ago."""
    changed = os.stat(file).st_mtime_ns - seconds * 10**9
    os.utime(file, ns=(changed, changed))


def files_in(root):
    return sorted(root.rglob("*.*"))


def place(root: Path, folder: Path | None) -> Path:
    """The record's file."""
    record = record_of(root, folder)
    assert record is not None
    return record


def start(root, folder):
    """What a start knows of every file, by name."""
    files = files_in(root)
    return dict(zip(files, read_headers(files, root, record_of(root, folder), sizes=True), strict=True))


def by_hand(root, sizes=True):
    """What PIL alone says of the whole files."""
    found = {}
    for file in files_in(root):
        with Image.open(file) as image:
            size = image.size[::-1] if file.name == "turned.jpg" else image.size
        found[file] = Header(None, *(size if sizes else (0, 0)), (file.stat().st_size, file.stat().st_mtime_ns))
    return found


def test_a_second_start_opens_no_file_and_knows_the_same(root, tmp_path, looked_at):
    assert start(root, tmp_path) == by_hand(root)
    assert len(looked_at) == 12
    assert start(root, tmp_path) == by_hand(root)
    assert len(looked_at) == 12


def test_only_new_and_changed_files_are_opened(root, tmp_path, looked_at):
    start(root, tmp_path)
    looked_at.clear()
    noise(50, 40).save(root / "a" / "new.jpg")
    noise(60, 40).save(root / "a" / "image 1.jpg")
    age(root / "a" / "image 1.jpg")
    age(root / "b" / "image 2.jpg", seconds=1)
    (root / "a" / "image 0.jpg").unlink()
    assert start(root, tmp_path) == by_hand(root)
    assert sorted(looked_at) == ["image 1.jpg", "image 2.jpg", "new.jpg"]
    looked_at.clear()
    start(root, tmp_path)
    assert looked_at == ["new.jpg"]  # it may have been changed within the same tick of the clock


def test_a_broken_file_is_named_at_every_start(root, tmp_path):
    broken = root / "a" / "image 3.jpg"
    broken.write_bytes(broken.read_bytes()[:-100])
    age(broken)
    for _ in range(2):
        with pytest.raises(UnreadableFileError, match=r"image 3\.jpg' cannot be read"):
            FolderDataModule(str(root), cache=str(tmp_path / "cache")).prepare_data()


def test_a_broken_file_does_not_have_the_record_written_at_every_start(root, tmp_path):
    broken = root / "a" / "image 3.jpg"
    broken.write_bytes(b"no image")
    age(broken)
    for _ in range(2):
        found = start(root, tmp_path)
        assert found[broken].defect is not None
        written = place(root, tmp_path).stat()
    start(root, tmp_path)
    assert place(root, tmp_path).stat() == written


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def signed(*columns):
    """A whole record of something else."""
    body = json.dumps(columns).encode()
    return checked._head(body) + b"\n" + body


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        flipped,
        lambda data: b"no record",
        lambda data: signed(["a"], [1], [2], [3]),
        lambda data: signed(["a"], [1], [2], [-3], [4]),
        lambda data: signed(["a"], [1], [2], ["3"], [4]),
        lambda data: signed(["a"], [1], [2], [2**20], [2**20]),
        lambda data: signed([["a"]], [1], [2], [3], [4]),
        lambda data: checked._head(b"[" * 10**5) + b"\n" + b"[" * 10**5,
    ],
)
def test_a_damaged_record_is_made_anew(root, tmp_path, looked_at, damage):
    record = place(root, tmp_path)
    start(root, tmp_path)
    whole = record.read_bytes()
    record.write_bytes(damage(whole))
    looked_at.clear()
    assert start(root, tmp_path) == by_hand(root)
    assert len(looked_at) == 12
    assert record.read_bytes() == whole
    assert {file.name for file in tmp_path.iterdir()} == {"images", record.name}


def test_without_a_place_for_the_record_every_start_looks_at_every_file(root, tmp_path, looked_at, monkeypatch):
    (tmp_path / "file").touch()
    for _ in range(2):
        assert start(root, tmp_path / "file" / "folder") == by_hand(root)
    assert len(looked_at) == 24
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert record_of(root, None) is None
    assert read_headers(files_in(root), root, None, sizes=True) == list(by_hand(root).values())


def test_by_default_the_record_is_in_the_users_folder_for_caches(root, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.chdir(tmp_path)
    record = place(root, None)
    assert record == record_of(Path("images"), None) != record_of(root / "a", None)
    FolderDataModule("images").prepare_data()
    assert record.exists()
    assert record.parent.parent == tmp_path / "caches"


def test_many_files_are_looked_at_by_processes_with_the_same_result(root, tmp_path, monkeypatch):
    monkeypatch.setattr(checked, "_WORTH_PROCESSES", 2)
    monkeypatch.setattr(checked, "_AT_ONCE", 5)
    monkeypatch.setattr(checked, "usable_cores", lambda: 2)
    (root / "a" / "image 3.jpg").write_bytes(b"")
    files = files_in(root)
    monkeypatch.setattr(checked, "in_threads", lambda look, files, *_, **__: [look(file) for file in files])
    headers = dict(zip(files, read_headers(files, root, None, sizes=True), strict=True))
    assert headers.pop(root / "a" / "image 3.jpg").defect == "not an image"
    (root / "a" / "image 3.jpg").unlink()
    assert headers == by_hand(root)


def test_sizes_are_looked_up_where_an_earlier_start_did_not_ask_for_them(root, tmp_path, looked_at):
    files, record = files_in(root), record_of(root, tmp_path)
    assert read_headers(files, root, record) == list(by_hand(root, sizes=False).values())
    assert start(root, tmp_path) == by_hand(root)
    assert len(looked_at) == 24
    assert read_headers(files, root, record) == list(by_hand(root).values())
    assert len(looked_at) == 24


def test_a_second_start_asks_the_disk_for_each_file_once(root, tmp_path, monkeypatch):
    asked: list[str] = []
    stat = os.stat

    def count(path, *args, **kwargs):
        asked.append(str(path))
        return stat(path, *args, **kwargs)

    def start():
        data = FolderDataModule(str(root), image_size=16, num_workers=0, batch_size=4, cache=str(tmp_path / "cache"))
        data.prepare_data()
        data.setup("fit")

    start()
    with monkeypatch.context() as patched:
        patched.setattr("os.stat", count)
        start()
    assert sorted(path for path in asked if path.endswith(".jpg")) == [str(file) for file in files_in(root)]


def test_the_cache_of_images_takes_its_sizes_from_the_record(root, tmp_path, looked_at):
    def shapes():
        data = FolderDataModule(str(root), image_size=16, num_workers=0, batch_size=4, cache=str(tmp_path / "cache"))
        data.prepare_data()
        data.setup("fit")
        train: Any = data.splits["train"]
        return train.cache.shapes

    first = shapes()
    looked_at.clear()
    assert shapes() == first
    assert looked_at == []
