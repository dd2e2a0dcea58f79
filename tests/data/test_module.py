"""What a data module serves: evaluation as it is, training augmented, each part a fair one."""

import multiprocessing
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torchvision.transforms import v2

from project.data import FolderDataModule
from project.engine import ArrayDataset, UserError
from project.engine.loading.workers import LazyDataLoader
from tests.conftest import cases
from tests.data.stubs import NoiseDataModule, attached, trainer as stub_trainer
from tests.distributed.job import classifier, trainer
from tests.engine.loading.stubs import by_index, epoch_of, require_equal
from tests.small import load, small


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_shows_the_images_as_they_are_always_in_the_same_order(split):
    options: dict[str, Any] = {"batch_size": 4, "crop_padding": 3, "cutout": 4, "num_workers": 0}
    options |= {"batch_transforms": [v2.MixUp()], "train_transforms": [v2.RandAugment()]}
    data, again = (
        attached(NoiseDataModule(**options, seed=of), epoch=of, training=False) for of in (0, 1)
    )
    batches = epoch_of(data, split)
    dataset = data.splits[split]
    require_equal(by_index(batches), (dataset.images, dataset.labels, torch.arange(len(dataset))))
    for first, second in zip(batches, epoch_of(again, split), strict=True):
        require_equal(first, second)


class SortedDataModule(NoiseDataModule):
    """Images of one class after the other, as a folder of classes has them; keeps what each epoch has seen."""

    def load(self):
        self.seen = defaultdict(list)
        return {
            split: ArrayDataset(data.images, data.labels.sort().values, split)
            for split, data in super().load().items()
        }

    def on_before_batch_transfer(self, batch, dataloader_idx):
        epoch = cast(Any, self.trainer).current_epoch
        self.seen[self.split_in_use, epoch] += batch.indices.tolist()
        return batch


@pytest.mark.parametrize("limits", [{"limit_val_batches": 2}, {"overfit_batches": 2}], ids=str)
def test_a_part_of_sorted_data_is_a_shuffle_of_all_classes_and_the_same_each_epoch(limits):
    data: Any = SortedDataModule(val=60, batch_size=8)
    trainer(1, max_epochs=3, **limits).fit(classifier(), datamodule=data)
    for split in ("train", "val") if "overfit_batches" in limits else ("val",):
        first, *others = (data.seen[split, epoch] for epoch in range(3))
        assert len(first) == 16
        assert all(other == first for other in others)
        assert set(data.splits[split].labels[first].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_starts_nothing_before_its_first_batch(num_workers):
    asked = []

    def order():
        asked.append(True)
        yield from range(4)

    options: dict[str, Any] = {"batch_size": 2, "collate_fn": list, "num_workers": num_workers}
    before = len(multiprocessing.active_children())
    iterator = iter(LazyDataLoader(cast(Any, range(4)), sampler=order(), **options))
    assert not asked
    assert len(multiprocessing.active_children()) == before
    assert next(iterator) == [0, 1]
    assert len(multiprocessing.active_children()) == before + num_workers
    assert list(iterator) == [[2, 3]]


def test_numbers_within_bounds_are_plain_in_a_checkpoint(workplace):
    small("--data.class_balance=0.5", "--data.mean=[0.4,0.5,0.6]", "--trainer.max_steps=1")
    checkpoint = load(Path("runs/run/checkpoints/last.ckpt"))  # with weights_only=True
    options = checkpoint["datamodule_hyper_parameters"]
    assert (options["class_balance"], options["mean"]) == (0.5, [0.4, 0.5, 0.6])


@cases(
    "options world_size text",
    ({"batch_size": 61}, 1, "batch_size must be at most 60, the number of training images"),
    ({"crop_padding": 12}, 1, "crop_padding must be below 12"),
    ({"batch_size": 10}, 3, "batch_size must be a multiple of 3, the number of devices, such as 9"),
    ({"device_cache": True, "train_transforms": [v2.Identity()]}, 1, "device_cache needs"),
)
def test_options_that_images_or_devices_do_not_allow_are_refused_by_name(options, world_size, text):
    with pytest.raises(UserError, match=rf"--data\.{text}"):
        epoch_of(attached(NoiseDataModule(**{"batch_size": 12} | options), world_size=world_size))


def test_an_example_input_of_a_model_passes_the_transfer_hooks(tmp_path):
    example = torch.zeros(1, 3, 12, 12)
    files: Any = FolderDataModule(str(tmp_path), on_bad_image="skip")
    files.trainer = stub_trainer()
    assert files.on_before_batch_transfer(example, 0) is example
    assert files.on_after_batch_transfer(example, 0) is example
