"""Decoded images that are kept: the same pixels, decoded once, by whichever process comes first."""

import os
from typing import Any

import pytest
import torch

from project.data import FolderDataModule
from project.engine.errors import UnreadableFileError
from project.engine.loading.cache import open_cache
from tests.conftest import draw_image, make_folder
from tests.data.stubs import attached

CLASSES = {"blue": 12, "red": 12}


@pytest.fixture
def images(tmp_path):
    return make_folder(tmp_path / "images", CLASSES)


def splits(images, cache, **options):
    data = FolderDataModule(str(images), image_size=16, num_workers=0, cache=cache and str(cache), **options)
    data.setup("validate")
    return data.splits


def epoch(dataset, number=0):
    return dataset.__getitems__([number * len(dataset) + index for index in range(len(dataset))])


def test_a_second_epoch_and_a_second_run_need_no_file(images, tmp_path):
    first, second = (splits(images, tmp_path / "cache")["train"] for _ in range(2))
    cropped = epoch(first)
    for file in first.files:
        file.rename(file.with_suffix(".gone"))
    assert torch.equal(epoch(first).images, cropped.images)
    assert torch.equal(epoch(second).images, cropped.images)
    assert not torch.equal(epoch(second, 1).images, cropped.images)


def test_processes_that_fill_a_file_at_once_read_what_one_alone_does(images, tmp_path):
    def loader(folder):
        options: Any = {"image_size": 16, "batch_size": 4, "num_workers": 1}
        return attached(FolderDataModule(str(images), cache=str(tmp_path / folder), **options)).train_dataloader()

    alone = [batch.images for batch in loader("one")]
    for first, second, expected in zip(loader("two"), loader("two"), alone, strict=True):
        assert torch.equal(first.images, expected)
        assert torch.equal(second.images, expected)


def test_files_that_differ_in_an_outer_folder_alone_are_told_apart(tmp_path):
    files = [tmp_path / place / "images" / "1.bmp" for place in ("cat", "dog")]  # all of one length and time
    caches = [open_cache(tmp_path, order, [(9, 9)] * 2, [(4, 4)] * 2, "") for order in (files, files[::-1])]
    assert len({cache.path for cache in caches if cache is not None}) == 2
    moved = [tmp_path / "moved" / file.relative_to(tmp_path) for file in files]
    again = open_cache(tmp_path, moved, [(9, 9)] * 2, [(4, 4)] * 2, "")
    assert again is not None
    assert caches[0] is not None
    assert again.path == caches[0].path


@pytest.mark.parametrize("change", ["image", "size", "crops", "interpolation"])
def test_what_decides_the_pixels_decides_the_file(images, tmp_path, change):
    first, second = (splits(images, tmp_path / "cache")["train"] for _ in range(2))
    before, again = first.cache.path, second.cache.path
    if change == "image":
        first.files[0].write_bytes(first.files[-1].read_bytes())
    options: Any = {"size": {"image_size": 24}, "interpolation": {"interpolation": "bicubic"}}.get(change, {})
    data = FolderDataModule(str(images), **{"image_size": 16} | options, cache=str(tmp_path / "cache"))
    data.setup("validate")
    changed: Any = data.splits["val" if change == "crops" else "train"]
    after = changed.cache.path
    assert before == again != after


@pytest.mark.parametrize("lost", ["pixels", "checksum", "both"])
def test_an_image_of_which_a_part_was_lost_is_decoded_again(images, tmp_path, lost):
    """A power cut may keep the pages of the checksums and lose those of the pixels, or the other way round."""
    train = splits(images, tmp_path / "cache")["train"]
    whole = epoch(train).images
    with open(train.cache.path, "r+b") as file:
        if lost != "pixels":
            file.seek(8 * 4)
            file.write(bytes(8))
        if lost != "checksum":
            file.seek(int(train.cache._starts[4]))
            file.write(bytes(3 * 16 * 16))
    assert torch.equal(epoch(splits(images, tmp_path / "cache")["train"]).images, whole)


def test_where_it_does_not_fit_that_is_said_and_images_are_decoded(images, tmp_path, monkeypatch, capsys):
    full = type("usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: full)
    train = splits(images, tmp_path / "cache")["train"]
    assert "has no room for the decoded train images; going on without" in capsys.readouterr().err
    assert torch.equal(epoch(train).images, epoch(splits(images, None)["train"]).images)
    assert not list((tmp_path / "cache").glob("*.images"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_whole_file_is_used_and_stays_where_the_disk_is_full_by_now(
    images, tmp_path, monkeypatch, capsys, compressed
):
    first = splits(images, tmp_path / "cache")["train"]
    whole, path = epoch(first).images, first.cache.path
    if compressed:  # takes less room than it is long
        size = path.stat().st_size
        os.truncate(path, 0)
        os.truncate(path, size)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 1000}))
    second = splits(images, tmp_path / "cache")["train"]
    assert capsys.readouterr().err == ""
    assert second.cache.path == path
    assert path.exists()
    assert torch.equal(epoch(second).images, whole)


def test_the_room_is_taken_before_the_first_image(images, tmp_path):
    files = sorted((images / "red").iterdir())
    cache = open_cache(tmp_path, files, [None] * len(files), [(10, 20)] * len(files), "")
    assert cache is not None
    assert cache.path.stat().st_size == len(files) * (8 + 3 * 10 * 20)
    assert cache.path.stat().st_blocks * 512 >= cache.path.stat().st_size


def test_a_file_that_takes_another_size_after_the_check_is_named(images, tmp_path):
    train = splits(images, tmp_path / "cache")["train"]
    draw_image(0.5, 0, (64, 24)).save(train.files[1])
    with pytest.raises(UnreadableFileError, match=rf"{train.files[1].name}' has changed"):
        epoch(train)
