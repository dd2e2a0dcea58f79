from collections import Counter
from typing import Any

import pytest
import torch

from project.data import SyntheticFlowersDataModule

SIZES = {"train": 40, "val": 16, "test": 17}


def module(**options) -> Any:
    data = SyntheticFlowersDataModule(
        **{f"{split}_size": size for split, size in SIZES.items()}, image_size=32, batch_size=8, **options
    )
    data.prepare_data()
    data.setup("fit")
    return data


@pytest.fixture(scope="module")
def data():
    return module()


def test_every_split_is_balanced_and_no_image_is_in_two(data):
    images = torch.cat([dataset.images for dataset in data.splits.values()]).flatten(1)
    assert len(images.unique(dim=0)) == sum(SIZES.values())
    for dataset in data.splits.values():
        counts = Counter(dataset.labels.tolist())
        assert set(counts) == set(range(len(data.class_names)))
        assert max(counts.values()) - min(counts.values()) <= 1


def test_the_images_are_decided_by_the_split_seed_alone(data):
    again, reseeded, other = module(), module(seed=5), module(split_seed=1)
    for split, dataset in data.splits.items():
        assert torch.equal(dataset.images, again.splits[split].images)
        assert torch.equal(dataset.images, reseeded.splits[split].images)
        assert not torch.equal(dataset.images, other.splits[split].images)


@pytest.mark.parametrize("other", [{"split_seed": 1}, {"train_size": 24}, {"image_size": 16}])
def test_images_of_the_same_name_are_the_same_flower(other):
    """Runs are compared image by image where their test images have the same names."""
    shared: dict[str, Any] = {"train_size": 16, "val_size": 8, "test_size": 8, "image_size": 32}
    first: Any = SyntheticFlowersDataModule(**shared)
    second: Any = SyntheticFlowersDataModule(**shared | other)
    for data in (first, second):
        data.setup("test")
    names = [[data.splits["test"].name(index) for index in range(8)] for data in (first, second)]
    assert (names[0] == names[1]) == ("image_size" in other)
