"""What ``on_bad_image`` does with files that break before and during training."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from lightkeeper.exact import UserError
from lightkeeper.exact._errors import LocalError, UnreadableFileError

from tests.image_files import write_folder
from tests.stubs import (
    Files,
    attached,
    by_class,
    cases,
    paths_of,
)


def module(root, on_bad_image="skip", **options):
    return Files(str(root), on_bad_image=on_bad_image, **options)


def served(data):
    return {
        split: {str(file) for file in paths_of(dataset)} for split, dataset in data.splits.items()
    }


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
    assert served(attached(module(root))) == {
        split: files - {broken[split]} for split, files in whole.items()
    }
    warning = capsys.readouterr().err.strip()
    assert warning.startswith("warning: 3 of 40 files cannot be read as images and are left out: ")
    assert all(f"'{file}' (not an image: it is empty)" in warning for file in broken.values())


@cases(
    "split classes message",
    ("train", "b", "no train image of class 'b' can be read: .* and {} more"),
    ("val", "ab", "no val image of class 'a' can be read"),
    ("test", "ab", "no test image of class 'a' can be read"),
)
def test_a_class_or_a_split_without_a_readable_image_is_refused(root, split, classes, message):
    files = [file for name in classes for file in by_class(module(root))[split][name]]
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(UserError, match=message.format(len(files) - 3)):
        attached(module(root))


@pytest.mark.parametrize("on_bad_image", ["error", "skip"])
def test_a_file_that_vanishes_in_training_is_an_error_that_names_it(root, on_bad_image):
    data = attached(module(root, on_bad_image, num_workers=1))
    gone, loader = data.splits["train"].path(5), data.train_dataloader()
    gone.unlink()
    with pytest.raises(
        UnreadableFileError, match=rf"{gone}' cannot be read as an image \(No such file"
    ):
        list(loader)
    loader._iterator._shutdown_workers()  # left to the garbage collector, it would wait for 5 seconds


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
