import pytest
import torch

from project.deploy.samples import folder_samples, folder_split, generated_samples
from project.engine.errors import UserError
from project.engine.preprocessing import Preprocessing
from tests.conftest import make_folder

PREPROCESSING: Preprocessing = {"resize": 36, "crop": 32, "mean": [0.5] * 3, "std": [0.25] * 3}


def test_images_of_class_folders_are_labelled_wherever_these_lie(tmp_path):
    root = make_folder(tmp_path / "images", {"test/b": 6, "test/a": 6})
    found = folder_samples(root, ["b", "unused", "a"], PREPROCESSING, 4)
    assert found.labels is not None
    assert found.labels.tolist() == [2, 2, 0, 0]  # of each class as many
    assert (found.images.shape, found.images.dtype) == ((4, 3, 32, 32), torch.uint8)
    assert folder_samples(root, ["b"], PREPROCESSING, 4).labels is None


def test_images_in_folders_within_a_class_folder_are_of_that_class(tmp_path):
    root = make_folder(tmp_path / "images", {"a/b": 1, "b/field": 1, "__MACOSX/a": 1})
    found = folder_samples(root, ["a", "b"], PREPROCESSING, 9)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1]


def test_each_class_has_its_share_where_labels_repeat_with_the_step(tmp_path):
    root = make_folder(tmp_path / "images", {f"{number:02}/{name}": 1 for number in range(40) for name in "abcd"})
    found = folder_samples(root, list("abcd"), PREPROCESSING, 40)
    assert found.labels is not None
    assert min(torch.bincount(found.labels, minlength=4)) >= 4
    again = folder_samples(root, list("abcd"), PREPROCESSING, 40)
    assert torch.equal(again.images, found.images)
    assert len(found.images.flatten(1).unique(dim=0)) == 40  # none twice


@pytest.mark.parametrize(("count", "sizes"), [(2, (1, 1)), (5, (2, 3)), (30, (8, 10))])
def test_no_image_is_calibrated_on_and_measured(tmp_path, count, sizes):
    root = make_folder(tmp_path / "images", {"a": count})
    calibration, measured = folder_split(root, ["a"], PREPROCESSING, (8, 10))
    assert (len(calibration.images), len(measured.images)) == sizes
    for image in calibration.images:
        assert not (measured.images == image).flatten(1).all(1).any()


def test_one_image_cannot_be_split(tmp_path):
    root = make_folder(tmp_path / "images", {"a": 1})
    with pytest.raises(UserError, match="has one image"):
        folder_split(root, ["a"], PREPROCESSING, (8, 10))


def test_generated_images_are_the_same_each_time_and_use_the_range():
    images = generated_samples(48).images
    assert torch.equal(images, generated_samples(48).images)
    assert (images.shape, images.dtype) == ((32, 3, 48, 48), torch.uint8)
    assert images.float().std() > 20
