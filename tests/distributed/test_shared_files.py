"""All processes train on the files that the first process has listed and checked."""

import json
import os
from typing import Any, cast

from project.engine.errors import UnreadableFileError
from project.engine.loading import check
from tests.conftest import make_folder
from tests.distributed.job import classifier, trainer
from tests.distributed.processes import forked, succeed
from tests.engine.loading.stubs import Files


def skip(folder):
    """Trains on image files, some of which the first process alone cannot read."""
    rank = int(os.environ["RANK"])
    module_of_checks = cast(Any, check)
    check_image = module_of_checks.check_image

    def look(file):
        if rank == 0 and file.name.endswith("1.jpg"):
            raise UnreadableFileError(f"'{file}' cannot be read as an image")
        return check_image(file)

    module_of_checks.check_image = look
    options: Any = {"on_bad_image": "skip", "val_fraction": 0.3, "test_fraction": 0.3}
    data: Any = Files(folder / "images", **options)
    if rank == 1:
        data._check = None
    trainer(2, max_epochs=2).fit(classifier(), datamodule=data)
    files = {split: [str(file) for file in dataset.files] for split, dataset in data.splits.items()}
    (folder / f"{rank}.json").write_text(json.dumps(files))


def test_all_processes_leave_out_what_the_first_cannot_read(tmp_path):
    """If each decided for itself, their data sets would differ in length, and the run would wait for ever."""
    root = make_folder(tmp_path / "images", {"a": 20, "b": 20})
    succeed(forked(2, skip, tmp_path), tmp_path, timeout=100)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    names = {file for files in first.values() for file in files}
    assert names == {str(file) for file in root.rglob("*.jpg") if not file.name.endswith("1.jpg")}
