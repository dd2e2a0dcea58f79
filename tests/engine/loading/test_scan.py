"""Which files of a folder are images of a class, whatever they are called and wherever links lead."""

import os
from io import BytesIO
from itertools import chain

import pytest
import torch
from torchvision.datasets import ImageFolder

from project.analysis.plots import confusion_figure
from project.engine.errors import UserError
from project.engine.loading.files import FileDataset
from project.engine.loading.scan import image_paths, listed_paths
from tests.data.stubs import attached
from tests.data.test_folder import epoch_of, found, listing, module
from tests.engine.loading.image_files import noise, write_folder


@pytest.mark.parametrize("name", ["with space", "Größe", "向日葵", "μαργαρίτα", "100%", "a.b", "it's", "-x"])
def test_any_name_of_a_folder_or_a_file_will_do(tmp_path, name):
    root = write_folder(tmp_path / name, {name: 5, "other": 5})
    for file in sorted((root / name).iterdir()):
        file.rename(file.with_name(f"{name} {file.name}"))
    data = attached(module(root))
    assert name in data.class_names
    assert len(epoch_of(data.train_dataloader())[0]) == 4
    assert str(data.splits["val"].name(data.class_names.index(name))).startswith(f"{name}/{name}")


def test_suffixes_in_capitals_count_and_other_files_do_not(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    noise(20, 20).save(root / "a" / "CAPITAL.PNG")
    (root / "a" / "notes.txt").write_text("no image")
    (root / "a" / "folder.jpg").mkdir()
    (root / "LICENSE.txt").write_text("no class")
    names = {name for files in found(root).values() for name in files}
    assert names == {*listing(root), "a/CAPITAL.PNG"} - {"a/folder.jpg"}


def test_files_at_any_depth_of_a_class_folder_are_those_that_torchvision_finds(tmp_path):
    names = ("a", "a/field", "a/field/far/away", "a/field.jpg", "b", "b/field", "only below/sub")
    root = write_folder(tmp_path, dict.fromkeys(names, 3))
    data = attached(module(root))
    (root / "a" / "notes.txt").touch()
    assert data.class_names == (expected := ImageFolder(str(root))).classes
    of_splits = [dataset for dataset in data.splits.values() if isinstance(dataset, FileDataset)]
    ours = [pair for data in of_splits for pair in zip(map(str, data.files), data.labels.tolist(), strict=True)]
    assert sorted(ours) == sorted(expected.samples)


def test_a_file_keeps_its_split_when_folders_within_its_class_come(tmp_path):
    root = write_folder(tmp_path / "root", {"a": 60, "b": 60})
    before = found(root)
    write_folder(root, {"a/field": 60, "b/field": 60})  # with the same names again
    after = found(root)
    assert sorted(chain(*after.values())) == listing(root)
    assert {split: [name for name in names if "field" not in name] for split, names in after.items()} == before
    assert {name.replace("/field", "") for name in after["test"]} > set(before["test"])
    root.rename(tmp_path / "train")  # by which the images to cut are in a folder of their own
    assert found(tmp_path) == {split: [f"train/{name}" for name in names] for split, names in after.items()}


@pytest.mark.parametrize("name", [".git", "__MACOSX", "@eaDir"])
def test_folders_of_systems_do_not_count_at_any_depth(tmp_path, name):
    root = write_folder(tmp_path, {"a": 4, "b": 4})
    before = found(root)
    write_folder(root, {f"{name}/a": 2, f"a/{name}": 2, f"a/sub/{name}": 2})
    assert found(root) == before


@pytest.mark.parametrize(
    "names", [("training", "testing"), ("val", "test"), ("Training", "Testing"), ("Train", "Val", "Test")]
)
def test_folders_that_are_splits_by_their_names_are_no_classes(tmp_path, names):
    write_folder(tmp_path, {f"{split}/{name}": 5 for split in names for name in "ab"})
    with pytest.raises(UserError, match="look like splits, not classes; call that of the training images 'train'"):
        module(tmp_path).files()


@pytest.mark.parametrize(
    ("other", "advice"),
    [
        ("Test", "call it 'test'"),
        ("testing", "call it 'test'"),
        ("Val", "call it 'val'"),
        ("Validation", "call it 'val'"),
        ("TRAINING", "beside 'train'; move one of them away"),
    ],
)
def test_a_folder_like_a_split_beside_the_training_images_is_not_ignored(tmp_path, other, advice):
    write_folder(tmp_path, {f"{split}/{name}": 5 for split in ("train", other) for name in "ab"})
    with pytest.raises(UserError, match=f"{other}' would be ignored.*{advice}"):
        module(tmp_path).files()


def test_hidden_folders_are_no_classes(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5, ".cache": 5})
    assert module(root).class_names == ["a", "b"]


@pytest.mark.parametrize("target", ["loop.jpg", "nowhere.jpg"])
def test_an_image_that_is_a_dead_link_is_named(tmp_path, target):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    (root / "a" / "loop.jpg").symlink_to(target)
    with pytest.raises(UserError, match=r"a/loop\.jpg' cannot be read"):
        module(root).prepare_data()


def test_a_link_to_an_image_or_a_folder_is_as_good_as_itself(tmp_path):
    away = write_folder(tmp_path / "away", {"a": 5, "b": 5})
    (tmp_path / "root" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a").symlink_to(away / "a")
    for file in (away / "b").iterdir():
        (tmp_path / "root" / "b" / file.name).symlink_to(file)
    data = attached(module(tmp_path / "root"))
    assert sum(len(dataset) for dataset in data.splits.values()) == 10


def test_a_class_folder_that_is_a_dead_link_is_named(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    (root / "c").symlink_to("c")
    with pytest.raises(UserError, match=r"c' is a link that leads nowhere"):
        module(root).files()


def test_a_link_back_to_the_root_is_no_class(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    (root / "a" / "back").symlink_to(root)
    (root / "a" / "sub").mkdir()
    (root / "a" / "sub" / "back").symlink_to(root / "a")
    assert module(root).class_names == ["a", "b"]
    assert sorted(chain(*found(root).values())) == listing(root)
    (root / "back").symlink_to(root)
    with pytest.raises(UserError, match=r"back' has no images"):
        module(root).files()


def test_a_name_that_is_not_utf8_is_split_and_read_like_any_other(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    try:
        (root / "a" / "image 0.jpg").rename(root / "a" / os.fsdecode(b"Gr\xf6\xdfe.jpg"))
    except OSError:
        pytest.skip("this file system wants UTF-8")
    data = attached(module(root))
    assert sum(len(dataset) for dataset in data.splits.values()) == 10


def test_a_class_whose_name_is_not_utf8_has_a_name_that_can_be_drawn_and_written(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    try:
        (root / "a").rename(root / os.fsdecode(b"Gr\xfcn"))
    except OSError:
        pytest.skip("this file system wants UTF-8")
    data = attached(module(root))
    assert data.class_names == ["Gr\\xfcn", "b"]
    assert "".join(data.class_names).encode().decode() == "".join(data.class_names)
    assert sum(len(dataset) for dataset in data.splits.values()) == 10
    confusion_figure(torch.eye(2, dtype=torch.int64), data.class_names).savefig(BytesIO())


@pytest.mark.parametrize("place", [".", "train", "folder without images"])
def test_images_without_class_folders_are_recognised(tmp_path, place):
    if place == "train":
        write_folder(tmp_path, {"train": 5, "val": 2})
        message = "look like splits, not classes; call .* 'train', with a folder for each class inside"
    else:
        (tmp_path / place).mkdir(exist_ok=True)
        noise(20, 20).save(tmp_path / "first.jpg")
        message = r"has images \(such as 'first.jpg'\), but no class folders with images; it must hold one folder"
    with pytest.raises(UserError, match=message):
        module(tmp_path).files()


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_must_not_be_read_is_named(tmp_path):
    root = write_folder(tmp_path, {"a": 5, "b": 5})
    (root / "b").chmod(0)
    with pytest.raises(UserError, match=r"b' cannot be read \(Permission denied\)"):
        module(root).files()


def paths(*named) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    return list(image_paths(map(str, named), notes.append)), notes


def test_folders_are_listed_sorted_at_any_depth(tmp_path):
    for name in (
        "b/2.JPG",
        "b/10.png",
        "a/z/1.webp",
        "a.jpg",
        "b.txt",
        ".hidden/1.jpg",
        "c/.git/2.jpg",
        "__MACOSX/b/2.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found, notes = paths(tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in found] == ["a.jpg", "a/z/1.webp", "b/10.png", "b/2.JPG"]
    assert not notes


def test_what_is_named_is_listed_whatever_it_is(tmp_path):
    (tmp_path / "notes.txt").touch()
    named = [str(tmp_path / "notes.txt"), str(tmp_path / "missing"), str(tmp_path / "notes.txt")]
    assert paths(*named) == (named, [])


def test_links_are_followed_unless_they_lead_back_up(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jpg").touch()
    (tmp_path / "in" / "deep" / "up").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "aside").symlink_to(tmp_path / "other")
    (tmp_path / "in" / "dead.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "in" / "self.jpg").symlink_to("self.jpg")
    found, notes = paths(tmp_path / "in")
    assert [os.path.relpath(path, tmp_path / "in") for path in found] == ["dead.jpg", "self.jpg", "aside/1.jpg"]
    assert len(notes) == 1
    assert "deep/up' leads back to a folder that it is in" in notes[0]


def test_a_named_pipe_in_a_folder_is_no_image(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    assert paths(tmp_path) == ([], [])


def read(content: bytes) -> list[str]:
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    with open(reading, "rb") as stream:
        return list(listed_paths(stream))


def test_lists_have_a_path_a_line_or_nul_between_paths():
    assert read(b"a b.jpg\n\n\xff.jpg\nlast") == ["a b.jpg", "\udcff.jpg", "last"]
    assert read(b"two\nlines.jpg\0b.jpg\0") == ["two\nlines.jpg", "b.jpg"]
    assert read(b"") == []


def test_a_list_is_read_as_it_comes():
    reading, writing = os.pipe()
    with open(reading, "rb") as stream:
        found = listed_paths(stream)
        for name in ("first", "second"):
            os.write(writing, f"{name}\n".encode())
            assert next(found) == name
        os.close(writing)
        assert list(found) == []
