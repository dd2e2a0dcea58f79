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
from project.engine.loading.holes import has_hole
from tests.engine.loading.image_files import cut_before_the_end, noise, save, shortened, smooth, write_folder, zeroed

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


@pytest.mark.parametrize("damage", [zeroed, shortened])
def test_a_part_that_is_lost_is_refused_or_seen_as_a_hole(whole, damage):
    data, passed = whole.read_bytes(), 0
    kind = "JPEG" if whole.suffix == ".jpg" else "WEBP"
    assert not has_hole(data, kind)
    for seed in range(COUNT):
        damaged = damage(data, random.Random(seed), length=1024)
        whole.write_bytes(damaged)
        passed += not is_refused(whole) and not has_hole(damaged, kind)
    # where a JPEG's pixels fall into step again behind the gap, nothing is left to see it by
    assert passed == 0 if damage is zeroed or kind == "WEBP" else passed < COUNT / 3


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
