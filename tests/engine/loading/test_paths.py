"""Paths in a tensor of bytes are those of a plain list, and small."""

import os

import pytest
import torch

from project.engine.loading.paths import Paths, joined

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
    folders = [tmp_path / "daisy", tmp_path / "rose"]
    lists = [[f"{folder.name}/{name}" for name in NAMES] for folder in folders]
    paths = joined([Paths.of([*names, ELSEWHERE], tmp_path) for names in lists])
    if saved:
        files = {
            "train": {"a": paths.take([*range(3)]), "b": paths.take(slice(3, None))},
            "val": {"a": paths.take([])},
        }
        torch.save(files, tmp_path / "paths")
        found = torch.load(tmp_path / "paths", mmap=True, weights_only=False)
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
