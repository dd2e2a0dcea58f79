"""Decoded images that are kept: the same pixels, decoded once, by whichever process comes first."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from project.engine.errors import UserError
from project.engine.loading.cache import open_cache
from project.engine.loading.check import check_files
from project.engine.loading.paths import Paths
from tests.engine.loading.image_files import noise, write_folder
from tests.engine.loading.stubs import Files, attached


@pytest.fixture
def start(tmp_path):
    """Opens a split as a run does."""
    write_folder(tmp_path / "images", {"blue": 12, "red": 12})

    def splits(split: str = "train", **options):
        options = {"cache": str(tmp_path / "cache")} | options
        data = Files(tmp_path / "images", **options)
        data.setup("validate")
        return data.splits[split]

    return splits


def epoch(dataset, number=0):
    return dataset.__getitems__(
        [number * len(dataset) + index for index in range(len(dataset))]
    ).images


def test_a_second_epoch_and_a_second_run_need_no_file_and_the_room_is_taken_before_the_first(start):
    first, second = start(), start()
    room = first.cache.path.stat()
    assert (
        room.st_blocks * 512
        >= room.st_size
        == sum(8 + 3 * height * width for height, width in first.cache.shapes)
    )
    cropped = epoch(first)
    for file in first.files:
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


def test_files_that_differ_in_an_outer_folder_alone_are_told_apart(tmp_path):
    def path(root, *names):
        for name in ("cat", "dog"):
            (root / name).mkdir(parents=True, exist_ok=True)
            noise(9, 9).save(root / name / "1.bmp")
            os.utime(root / name / "1.bmp", (9, 9))
        _, rows = check_files(Paths.of(names, root), root)
        return open_cache(tmp_path / "cache", rows, np.full((2, 2), 4), "").path

    names = ("cat/1.bmp", "dog/1.bmp")
    root, moved = tmp_path / "images", tmp_path / "moved"
    assert path(root, *names) == path(moved, *names) != path(root, *names[::-1])


def test_what_decides_the_pixels_decides_the_file(start):
    first = start()
    paths = [
        one.cache.path
        for one in (start(), start("val"), start(image_size=24), start(interpolation="bicubic"))
    ]
    first.files[0].write_bytes(first.files[-1].read_bytes())
    assert first.cache.path == paths[0]
    assert len({*paths, start().cache.path}) == 5


def test_an_image_of_which_a_part_was_lost_is_decoded_again(start):
    """A power cut may keep the pages of the checksums and lose those of the pixels, or the other way round."""
    train = start()
    whole, cache = epoch(train), train.cache
    pixels, checksum = (int(cache._starts[4]), 3 * 16 * 16), (8 * 4, 8)
    for lost in ([pixels], [checksum], [pixels, checksum]):
        with open(cache.path, "r+b") as file:
            for place, size in lost:
                file.seek(place)
                file.write(bytes(size))
        assert torch.equal(epoch(start()), whole)


def test_a_full_disk_is_an_error_before_training(start, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"--data.cache '.*' cannot be written \(No space left"):
        start()
    assert not list((tmp_path / "cache").glob("*.images"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_whole_file_is_used_and_stays_where_the_disk_is_full_by_now(
    start, monkeypatch, capsys, compressed
):
    first = start()
    whole, path = epoch(first), first.cache.path
    if compressed:  # takes less room than it is long
        size = path.stat().st_size
        os.truncate(path, 0)
        os.truncate(path, size)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    second = start()
    assert capsys.readouterr().err == ""
    assert second.cache.path == path
    assert torch.equal(epoch(second), whole)
