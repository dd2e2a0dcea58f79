"""What ``--data.on_bad_image`` does with files that break before and during training."""

import errno
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from project.data import FolderDataModule
from project.engine.errors import LocalError, UnreadableFileError, UserError
from project.engine.loading import check
from tests.conftest import cases, make_folder
from tests.data.stubs import NoiseDataModule, attached
from tests.data.test_torch_dataset import joined
from tests.distributed.job import classifier, trainer
from tests.distributed.processes import forked, succeed
from tests.engine.loading.image_files import damage_deep_inside, write_folder


def module(root, on_bad_image="skip", **options):
    sizes = {"image_size": 16, "batch_size": 4, "num_workers": 0}
    return FolderDataModule(str(root), on_bad_image=on_bad_image, **sizes | options)


def served(data):
    return {split: {str(file) for file in dataset.files} for split, dataset in data.splits.items()}


def transferred(data, split="train"):
    batches = getattr(data, f"{split}_dataloader")()
    return joined([data.on_before_batch_transfer(batch, 0) for batch in batches])


@pytest.fixture
def root(tmp_path):
    return write_folder(tmp_path, {"a": 20, "b": 20})


def test_broken_files_are_left_out_and_every_other_file_stays_in_its_split(root, capsys):
    whole = served(attached(module(root)))
    broken = {
        split: next(file for file in files if "/b/" in file) for split, files in whole.items()
    }
    for file in broken.values():
        Path(file).write_bytes(b"")
    data = attached(module(root))
    assert served(data) == {split: files - {broken[split]} for split, files in whole.items()}
    assert all(len(dataset.labels) == len(dataset.files) for dataset in data.splits.values())
    warning = capsys.readouterr().err.strip()
    assert warning.startswith("warning: 3 of 40 files cannot be read as images and are left out: ")
    assert all(f"'{file}' (not an image)" in warning for file in broken.values())


@cases(
    "split classes message",
    ("train", "b", "no train image of class 'b' can be read: .* and {} more"),
    ("val", "ab", "no val image of class 'a' can be read"),
    ("test", "ab", "no test image of class 'a' can be read"),
)
def test_a_class_or_a_split_without_a_readable_image_is_refused(root, split, classes, message):
    files = [file for name in classes for file in module(root).files()[split][name]]
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(UserError, match=message.format(len(files) - 3)):
        attached(module(root))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_file_that_vanishes_in_training_is_named_where_it_is_an_error(root, num_workers):
    data = attached(module(root, "error", num_workers=num_workers))
    gone, loader = data.splits["train"].files[5], data.train_dataloader()
    gone.unlink()
    with pytest.raises(
        UnreadableFileError, match=rf"{gone}' cannot be read as an image \(No such file"
    ):
        list(loader)
    if num_workers:
        loader._iterator._shutdown_workers()  # left to the garbage collector, it would wait for 5 seconds


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_file_that_breaks_in_training_leaves_its_batch_and_the_others_as_they_were(
    root, num_workers, capsys
):
    data = attached(module(root, num_workers=num_workers, batch_size=8), epoch=2)
    whole = transferred(data)
    gone, deep = data.splits["train"].files[5], data.splits["train"].files[9]
    gone.unlink()
    damage_deep_inside(deep)
    for _ in range(2):
        kept = torch.tensor([index not in (5, 9) for index in whole.indices.tolist()])
        assert int(kept.sum()) == len(whole.indices) - 2
        assert all(
            torch.equal(field[kept], left)
            for field, left in zip(whole, transferred(data), strict=True)
        )
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert all(
        any(f"'{file}' cannot be read" in line for line in warnings) for file in (gone, deep)
    )


@pytest.mark.parametrize("split", ["val", "test"])
def test_in_evaluation_a_file_that_breaks_is_not_counted_and_is_named_once(root, split, capsys):
    data = attached(module(root), training=False)
    data.trainer.testing = split == "test"
    gone, expected = (
        data.splits[split].files[2],
        dict(enumerate(data.splits[split].labels.tolist())) | {2: -1},
    )
    gone.unlink()
    for _ in range(2):
        batch = transferred(data, split)
        assert dict(zip(batch.indices.tolist(), batch.labels.tolist(), strict=True)) == expected
        place = batch.indices.tolist().index(2)
        assert not batch.images[place].any()
        assert data.on_after_batch_transfer(batch, 0).labels[place] == -1
    assert capsys.readouterr().err.count(f"'{gone}' cannot be read") == 1


def test_a_training_batch_without_a_readable_image_ends_the_run(root):
    data = attached(module(root))
    for file in data.splits["train"].files:
        file.unlink()
    with pytest.raises(
        UnreadableFileError, match=f"no image of a training batch of 4 can be read; is '{root}'"
    ):
        transferred(data)


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
    data: Any = module(folder / "images", val_fraction=0.3, test_fraction=0.3)
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


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO])
def test_an_error_of_the_system_is_no_broken_image(root, monkeypatch, code):
    data = attached(module(root))
    monkeypatch.setattr("PIL.Image.open", Mock(side_effect=OSError(code, os.strerror(code))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / ".nothing"))
    for look in (module(root).prepare_data, lambda: next(iter(data.train_dataloader()))):
        with pytest.raises(
            LocalError, match=rf"jpg' cannot be read \({os.strerror(code)}\)"
        ) as caught:
            look()
        assert not isinstance(caught.value, UnreadableFileError)
