"""Paths in a block of bytes are those of a plain list, and small."""

import io
import os

import pytest
import torch

from project.engine.loading.files import FileDataset
from project.engine.loading.paths import PathBlock, joined, pack, unpack

NAMES = [
    "1.jpg",
    "with space.jpg",
    "Größe/向日葵.png",
    "two\nlines.gif",
    os.fsdecode(b"no utf-8 \xff\xfe.jpg"),
    "a//b.jpg",
]
ELSEWHERE = "/data/out/of/it.jpg"  # as a CSV may say


@pytest.mark.parametrize("saved", [False, True])
def test_a_block_has_the_paths_of_a_plain_list(tmp_path, saved):
    block, folders = PathBlock(), [tmp_path / "daisy", tmp_path / "rose"]
    paths = joined([block.add(folder, iter([*NAMES, ELSEWHERE])) for folder in folders])
    if saved:
        files = {"train": {"a": paths.take([*range(3)]), "b": paths.take(slice(3, None))}, "val": {"a": paths.take([])}}
        torch.save(pack(files), tmp_path / "paths")
        found = unpack(torch.load(tmp_path / "paths", mmap=True, weights_only=True))
        assert [[*classes] for classes in found.values()] == [["a", "b"], ["a"]]
        paths = joined(files for classes in found.values() for files in classes.values())
    expected = [folder / name for folder in folders for name in [*NAMES, ELSEWHERE]]
    assert [*paths] == [paths[index] for index in range(len(paths))] == expected
    assert paths[-1] == expected[-1]
    places = [9, 0, 3]
    for chosen in (places, torch.tensor(places), torch.tensor(places).numpy()):
        assert [*paths.take(chosen)] == [expected[place] for place in places]
    assert [*paths.take([])] == []
    assert [*paths.take(slice(2, 9))] == expected[2:9]
    assert [*paths.take([path.suffix == ".png" for path in expected])] == [expected[2], expected[9]]
    names = [f"{folder.name}/{name}" for folder in folders for name in NAMES]
    assert [name for name in paths.strings(below=tmp_path) if name != ELSEWHERE] == names


def test_a_dataset_takes_at_most_40_bytes_an_image(tmp_path):
    """For names like ImageNet's; a list of paths takes ten times as much."""
    block, count = PathBlock(), 1300
    classes = [f"n{number:08}" for number in range(1440764, 1440784)]
    files = joined(
        [block.add(tmp_path / one, (f"{one}_{image}.JPEG" for image in range(9000, 9000 + count))) for one in classes]
    )
    labels = torch.arange(len(classes), dtype=torch.int32).repeat_interleave(count)
    dataset = FileDataset(files, labels, {"resize": 32, "crop": 32, "mean": [0.5] * 3, "std": [0.5] * 3})
    torch.save(dataset, buffer := io.BytesIO())
    assert buffer.tell() <= 40 * len(dataset)
    assert dataset.labels.dtype == torch.int64
