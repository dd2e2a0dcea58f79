"""Decoded images that are kept: the same pixels, decoded once, by whichever process comes first."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from lightkeeper.exact import UserError

from tests.image_files import write_folder
from tests.stubs import Files, attached, paths_of


@pytest.fixture
def start(tmp_path):
    """Opens a split as a run does."""
    write_folder(tmp_path / "images", {"blue": 12, "red": 12})

    def splits(split: str = "train", folder: str = "images", **options):
        data = Files(tmp_path / folder, **{"cache": str(tmp_path / "cache")} | options)
        data.setup("validate")
        return data.splits[split]

    return splits


def epoch(dataset, number=0):
    size = len(dataset)
    return dataset.__getitems__([number * size + index for index in range(size)]).images


def test_a_second_epoch_and_a_second_run_need_no_file_and_the_room_is_taken_before_the_first(start):
    first, second = start(), start()
    room = first.cache.path.stat()
    size = sum(8 + 3 * height * width for height, width in first.cache.shapes)
    assert room.st_blocks * 512 >= room.st_size == size
    cropped = epoch(first)
    for file in paths_of(first):
        file.rename(file.with_suffix(".gone"))
    assert torch.equal(epoch(first), cropped)
    assert torch.equal(epoch(second), cropped)
    assert not torch.equal(epoch(second, 1), cropped)


def test_processes_that_fill_a_file_at_once_read_what_one_alone_does(start, tmp_path):
    def loader(folder):
        data = Files(tmp_path / "images", num_workers=1, cache=str(tmp_path / folder))
        return attached(data).train_dataloader()

    alone = [batch.images for batch in loader("one")]
    for first, second, expected in zip(loader("two"), loader("two"), alone, strict=True):
        assert torch.equal(first.images, expected)
        assert torch.equal(second.images, expected)


def test_an_image_of_which_a_part_was_lost_is_decoded_again(start):
    """A power cut may keep the pages of the checksums and lose those of the pixels, or the other way round."""
    train = start()
    whole = epoch(train)
    stored = train.cache.path.read_bytes()
    checksums = 8 * len(train)
    lost = bytes(checksums)
    for damaged in (stored[:checksums].ljust(len(stored), b"\0"), lost + stored[checksums:]):
        train.cache.path.write_bytes(damaged)
        assert torch.equal(epoch(start()), whole)


def test_what_decides_the_pixels_decides_the_file_wherever_the_root_is(start, tmp_path):
    first = start()
    shutil.copytree(tmp_path / "images", tmp_path / "moved")  # keeps the times of change
    assert first.cache.path == start().cache.path == start(folder="moved").cache.path
    others = [start("val"), start(image_size=24), start(interpolation="bicubic")]
    (tmp_path / "moved" / "red").rename(tmp_path / "moved" / "ruby")
    first.path(0).write_bytes(first.path(-1).read_bytes())
    others += [start(), start(folder="moved")]
    assert len({first.cache.path, *(other.cache.path for other in others)}) == 6


def test_a_full_disk_is_an_error_before_training_unless_the_file_is_whole(start, monkeypatch):
    """Full is a disk, too, that would have less left than the file takes."""
    whole = start()
    expected = epoch(whole)
    free = SimpleNamespace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    assert torch.equal(epoch(start()), expected)
    room = 2 * whole.cache.path.stat().st_size
    whole.cache.path.unlink()
    for free.free in (1000, room - 1):
        with pytest.raises(UserError, match=r"cache: '.*' cannot be written \(No space left"):
            start()
    free.free = room
    assert torch.equal(epoch(start()), expected)
