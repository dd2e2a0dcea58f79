"""Drawn flowers: splits are balanced and share none, and their seed alone decides them."""

from typing import Any

import pytest
import torch

from project.data import SyntheticFlowersDataModule
from project.model import ImageClassifier
from tests.conftest import ONE_CPU, QUIET, fit
from tests.stubs import attached

SIZES = {"train_size": 40, "val_size": 16, "test_size": 17}


def module(**options):
    settings: dict[str, Any] = SIZES | {"image_size": 32, "batch_size": 8} | options
    return attached(SyntheticFlowersDataModule(**settings))


def test_every_split_is_balanced_and_no_image_is_in_two():
    data = module()
    images = torch.cat([dataset.images for dataset in data.splits.values()]).flatten(1)
    assert len(images.unique(dim=0)) == sum(SIZES.values())
    for dataset in data.splits.values():
        counts = dataset.labels.bincount(minlength=len(data.class_names))
        assert counts.max() - 1 <= counts.min() > 0


@pytest.mark.parametrize(
    "options", [{"seed": 5}, {"split_seed": 1}, {"train_size": 24}, {"image_size": 16}]
)
def test_the_split_seed_alone_decides_the_images_and_names_are_those_of_flowers(options):
    """Runs are compared image by image where their test images have the same names."""
    first = module().splits["test"]
    second = module(**options).splits["test"]
    same = [first.name(index) for index in range(8)] == [second.name(index) for index in range(8)]
    assert same == ("image_size" in options or "seed" in options)
    assert torch.equal(first.images, second.images) == ("seed" in options)


@pytest.mark.parametrize("size", [32, 64])
def test_the_default_network_takes_images_of_each_size_and_a_checkpoint_names_it(size):
    preprocessing: Any = {"resize": size, "crop": size, "mean": [0.5] * 3, "std": [0.5] * 3}
    model = ImageClassifier(["a", "b"], preprocessing)
    assert model.arch == model.hparams["arch"] is not None


@pytest.mark.slow
def test_a_network_tells_the_kinds_apart_after_the_built_in_training(workplace):
    cli = fit(*ONE_CPU, *QUIET)
    assert float(cli.trainer.callback_metrics["test/accuracy"]) > 0.98
