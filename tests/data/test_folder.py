import warnings

import pytest
import torch

from project.data import FolderDataModule
from project.engine.errors import UserError
from tests.conftest import cases
from tests.data.stubs import attached
from tests.engine.loading.image_files import noise, smooth, write_folder

CLASSES = {"rose": 10, "daisy": 20, "tulip": 15}


def module(root, **options):
    return FolderDataModule(
        str(root), **{"image_size": 16, "batch_size": 4, "num_workers": 0} | options
    )


def found(root, **options):
    files = module(root, **options).files()
    every = {
        split: [file for names in classes.values() for file in names]
        for split, classes in files.items()
    }
    return {
        split: sorted(str(file.relative_to(root)) for file in part) for split, part in every.items()
    }


def listing(root, *parts):
    return sorted(
        str(file.relative_to(root))
        for part in parts or [""]
        for file in (root / part).rglob("*.jpg")
    )


def epoch_of(loader):
    batches = list(loader)
    return [torch.cat(field) for field in zip(*batches, strict=True)]


@pytest.mark.parametrize(("given", "cut"), [("val test", ""), ("val", "test"), ("test", "val")])
def test_given_splits_are_taken_as_they_are_and_others_cut_from_the_training_images(
    tmp_path, given, cut
):
    write_folder(tmp_path / "train", CLASSES)
    for split in given.split():
        write_folder(tmp_path / split, dict.fromkeys(CLASSES, 2))
    splits = found(tmp_path)
    assert all(splits[split] == listing(tmp_path, split) for split in given.split())
    assert sorted(splits["train"] + splits.get(cut, [])) == listing(tmp_path, "train")
    assert not cut or {name.split("/")[1] for name in splits[cut]} == set(CLASSES)


def test_workers_change_nothing_and_load_a_whole_split_in_order_where_training_asks_for_indices_alone(
    tmp_path,
):
    root = write_folder(tmp_path, CLASSES)
    data, alone = (attached(module(root, num_workers=count), epoch=3) for count in (2, 0))
    for split, left in {"train": len(data.splits["train"]) % 4, "val": 0}.items():
        found, expected = (epoch_of(getattr(one, f"{split}_dataloader")()) for one in (data, alone))
        assert len(found[1]) == len(data.splits[split]) - left > 0
        assert all(map(torch.equal, found, expected))
    data.serve_features({"train": None})
    loader = data.whole_split("train")
    assert loader.num_workers == 2
    expected = data.splits["train"].__getitems__(list(range(len(data.splits["train"]))))
    for found, field in zip(epoch_of(loader), expected, strict=True):
        assert torch.equal(found, field)
    assert data.train_dataloader().num_workers == 0


def test_a_random_crop_depends_on_seed_epoch_and_index_alone(tmp_path):
    root = write_folder(tmp_path, CLASSES)
    dataset = attached(module(root)).splits["train"]
    size = len(dataset)
    keys = [(5, index) for index in range(size)]
    images = dataset.__getitems__(keys).images
    backwards = dataset.__getitems__(keys[::-1])
    assert torch.equal(backwards.images.flip(0), images)
    assert backwards.indices.tolist() == list(range(size))[::-1]
    assert torch.equal(torch.cat([dataset.__getitems__([key]).images for key in keys]), images)
    again = [(5, size + index) for index in range(size)]  # where an epoch takes them once more
    others = (
        dataset.__getitems__(list(range(size))),
        attached(module(root, seed=1)).splits["train"].__getitems__(keys),
    )
    for other in (*others, dataset.__getitems__(again)):
        assert not (other.images == images).flatten(1).all(1).any()


def test_a_file_is_closed_when_its_pixels_are_there(tmp_path):
    frames = [smooth(32, 32), noise(32, 32)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(5):
            frames[0].save(
                tmp_path / name / f"{number}.gif", save_all=True, append_images=frames[1:]
            )
    data = attached(module(tmp_path))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        epoch_of(data.train_dataloader())
        epoch_of(data.val_dataloader())
    assert not [str(warning.message) for warning in seen]


def test_of_many_broken_files_the_first_are_named_and_all_are_counted(tmp_path):
    root = write_folder(tmp_path / "my images", {"a": 5, "b": 5})
    for number in range(7):
        (root / "b" / f"bad {number}.jpg").touch()
    with pytest.raises(UserError) as caught:
        module(root).prepare_data()
    text = str(caught.value)
    assert text.startswith("7 of 17 files cannot be read as images: ")
    assert [f"bad {number}.jpg' (not an image)" in text for number in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    assert " and 4 more; " in text
    assert "--data.on_bad_image skip" in text
    assert f"python -m project.check_data '{root}'" in text
    assert "\n" not in text


def test_a_folder_of_arrays_alone_names_the_option_that_reads_them(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.npy").touch()
    with pytest.raises(UserError, match=r"has \.npy files alone, which need --data\.channels"):
        module(tmp_path).files()


@cases(
    "folders message",
    ({}, "has no images"),
    ({"a": 0, "b": 0}, "has no images"),
    ({"a": 5, "empty one": 0}, "'.*empty one' has no images"),
    ({"only": 9}, "one class only, 'only'"),
    ({"a": 5, "small": 2}, r"'small' has 2 image"),
    ({"train/a": 5, "train/b": 5, "val/a": 1, "val/c": 1}, "differ in: b, c"),
    ({"train/a": 5, "train/b": 5, "train/c": 5, "test/a": 1, "test/b": 1}, "differ in: c"),
    ({"train/a": 5, "train/b": 5, "test/a": 1, "test/b": 1, "test/c": 1}, "differ in: c"),
    ({"train/a": 5, "train/b": 1, "val/a": 1, "val/b": 1}, "'b' has 1 image"),
    ({"train/a": 5, "train/b": 5, "val/a": 1, "val/b": 0}, "b' has no images"),
)
def test_a_folder_that_cannot_be_learnt_from_is_refused(tmp_path, folders, message):
    write_folder(tmp_path, folders)
    with pytest.raises(UserError, match=message):
        module(tmp_path).files()
