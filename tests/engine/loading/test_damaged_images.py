"""Damaged JPEG and WebP files: what a decoder complains of is an error wherever a file is decoded."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from project.data import FolderDataModule
from project.engine.errors import UnreadableFileError
from project.engine.loading.decode import decode, open_image
from tests.engine.loading.image_files import cut_before_the_end, noise, save, smooth, write_folder

COUNT = 60
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline": ("jpg", {}),
    "progressive": ("jpg", {"progressive": True}),
    "grey": ("jpg", {"mode": "L"}),
    "CMYK": ("jpg", {"mode": "CMYK"}),
    "lossy": ("webp", {}),
    "lossless": ("webp", {"lossless": True, "method": 0}),
}


def photo():
    """Gentle colours with some noise, so that all of a file's bytes say something."""
    mixed = np.asarray(smooth(200, 150)) // 2 + np.asarray(noise(200, 150)) // 4
    return Image.fromarray(mixed.astype(np.uint8))


@pytest.fixture(params=OPTIONS)
def whole(request, tmp_path):
    """A whole file."""
    suffix, options = OPTIONS[request.param]
    kept = {name: value for name, value in options.items() if name != "mode"}
    return save(photo().convert(options.get("mode", "RGB")), tmp_path / f"image.{suffix}", **kept)


def is_refused(path):
    try:
        with open_image(path) as image:
            decode(image, path)
    except UnreadableFileError:
        return True
    return False


def test_a_file_that_was_cut_but_ends_as_it_should_is_never_accepted(whole):
    data = whole.read_bytes()
    assert not is_refused(whole)
    for seed in range(COUNT):
        whole.write_bytes(cut_before_the_end(data, random.Random(seed)))
        assert is_refused(whole)


@pytest.fixture
def damaged(tmp_path):
    """A folder with one training and one validation JPEG that lack a part, and where these are."""
    root = write_folder(tmp_path / "images", {"a": 8, "b": 8}, size=(120, 90))
    files = FolderDataModule(str(root)).files()
    broken = {split: files[split]["b"][0] for split in ("train", "val")}
    for file in broken.values():
        file.write_bytes(cut_before_the_end(file.read_bytes(), random.Random(0)))
    return root, broken


def splits(root, **options):
    data = FolderDataModule(str(root), image_size=16, batch_size=4, num_workers=0, **options)
    data.prepare_data()  # which finds nothing wrong, as it only looks at the files' ends
    data.setup("fit")
    return data.splits


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_jpeg_that_lacks_a_part_ends_the_run_with_its_name(damaged, tmp_path, split, cached):
    root, broken = damaged
    dataset = splits(root, cache=str(tmp_path / "cache") if cached else None)[split]
    with pytest.raises(UnreadableFileError) as caught:
        dataset.__getitems__(list(range(len(dataset))))
    assert str(caught.value).startswith(f"'{broken[split]}' cannot be read as an image (Corrupt JPEG data: premature")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["train", "val"])
def test_it_is_left_out_where_that_is_asked_for(damaged, split):
    root, broken = damaged
    dataset = splits(root, on_bad_image="skip")[split]
    batch = dataset.__getitems__(list(range(len(dataset))))
    assert [dataset.files[index] for index in torch.nonzero(batch.labels < 0)[:, 0].tolist()] == [broken[split]]
