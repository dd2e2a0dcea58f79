"""All processes of a machine see the files and the images of its first process."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from project.engine.errors import UnreadableFileError
from project.engine.loading import check
from tests.conftest import make_folder
from tests.data.stubs import NoiseDataModule
from tests.distributed.job import classifier, trainer
from tests.distributed.processes import forked, succeed
from tests.engine.loading.stubs import Files


def skip(folder):
    """Trains on image files that the first process alone can list and check, and of which it alone cannot read some.

    Then opens images that lie in memory, which the first process alone can load.
    """
    rank, module_of_checks = int(os.environ["RANK"]), cast(Any, check)
    whole = module_of_checks.check_image
    tempfile.tempdir = str(folder / "temporary")

    def look(file):
        if rank == 0 and file.name.endswith("1.jpg"):
            raise UnreadableFileError(f"'{file}' cannot be read as an image")
        return whole(file)

    module_of_checks.check_image = look
    options: Any = {"on_bad_image": "skip", "val_fraction": 0.3, "test_fraction": 0.3}
    data: Any = Files(folder / "images", **options)
    assert data.class_names == ["a", "b"]
    if rank == 1:
        data._split = data._check = None
        assert data.split_sizes() == {}
    (one := trainer(2, max_epochs=2)).fit(classifier(), datamodule=data)
    images: Any = NoiseDataModule()
    images.trainer = one
    if rank == 1:
        images.load = None
    images.setup("validate")
    files = {split: [str(file) for file in dataset.files] for split, dataset in data.splits.items()}
    address = data._files["train"].paths.text.data_ptr()
    maps = mapped_file(address), mapped_file(images.splits["val"].images.data_ptr())
    (folder / f"{rank}.json").write_text(
        json.dumps([files, int(images.splits["val"].images.sum()), maps])
    )


def mapped_file(address):
    """The file that this process's memory shows at an address, as Linux names it."""
    for line in Path("/proc/self/maps").read_text().splitlines() if sys.platform == "linux" else []:
        span, *_, name = line.split(maxsplit=5)
        first, end = (int(number, 16) for number in span.split("-"))
        if first <= address < end:
            return name
    return None


def test_all_processes_see_the_list_and_the_images_of_the_first_without_files_that_it_cannot_read(
    tmp_path,
):
    """If each decided for itself, their data sets would differ in length, and the run would wait for ever."""
    root = make_folder(tmp_path / "images", {"a": 20, "b": 20})
    (tmp_path / "temporary").mkdir()
    succeed(forked(2, skip, tmp_path), tmp_path, timeout=100)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    names = {file for files in first[0].values() for file in files}
    assert first[1] == int(NoiseDataModule().load()["val"].images.sum())
    assert names == {str(file) for file in root.rglob("*.jpg") if not file.name.endswith("1.jpg")}
    assert not list((tmp_path / "temporary").glob("images-*"))
    for mapped in first[2] if sys.platform == "linux" else ():
        assert mapped == f"{tmp_path}/temporary/{Path(mapped).name}"
        assert mapped.endswith(" (deleted)")
