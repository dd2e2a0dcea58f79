import multiprocessing
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torchvision.transforms import v2

from project.data import FolderDataModule
from project.engine.errors import UserError
from project.engine.loading.batch import ArrayDataset, ImageBatch
from project.engine.loading.workers import LazyDataLoader
from tests.conftest import cases
from tests.data.stubs import NoiseDataModule, attached
from tests.data.stubs import trainer as stub_trainer
from tests.distributed.job import classifier, trainer
from tests.small import load, small


def epochs(data, loader):
    return [data.on_after_batch_transfer(batch, 0) for batch in loader]


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_shows_the_images_as_they_are_always_in_the_same_order(split):
    options: dict[str, Any] = {"batch_size": 4, "crop_padding": 3, "cutout": 4}
    options |= {
        "batch_transforms": [v2.MixUp()],
        "train_transforms": [v2.RandAugment()],
        "num_workers": 0,
    }
    data, again = (
        attached(NoiseDataModule(**options, seed=of), epoch=of, training=False) for of in (0, 1)
    )
    batches = epochs(data, getattr(data, f"{split}_dataloader")())
    images, labels, indices = by_index(*batches)
    dataset = data.splits[split]
    assert torch.equal(images, dataset.images)
    assert torch.equal(labels, dataset.labels)
    assert torch.equal(indices, torch.arange(len(dataset)))
    for first, second in zip(
        batches, epochs(again, getattr(again, f"{split}_dataloader")()), strict=True
    ):
        require_equal(first, second)


def by_index(*batches):
    joined = [torch.cat(field) for field in zip(*batches, strict=True)]
    order = joined[2].argsort()
    return ImageBatch(*(field[order] for field in joined))


def require_equal(first, second):
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "option", [{"flip": True}, {"crop_padding": 2}, {"cutout": 4}, {"cutout": 100}, {}], ids=str
)
def test_each_option_changes_training_images_and_no_label(option):
    data = attached(NoiseDataModule(**{"batch_size": 60, "flip": False} | option))
    (batch,) = epochs(data, data.train_dataloader())
    train = data.splits["train"]
    assert torch.equal(batch.images, train.images[batch.indices]) == (not option)
    assert torch.equal(batch.labels, train.labels[batch.indices])
    if option.get("cutout") == 100:  # all is covered, with the mean colour
        mean = (torch.tensor([0.1, 0.5, 0.9]) * 255).view(1, 3, 1, 1)
        assert (batch.images.float() - mean).abs().max() <= 0.5001


class SortedDataModule(NoiseDataModule):
    """Images of one class after the other, as a folder of classes has them; keeps what each epoch has seen."""

    def load(self):
        self.seen = defaultdict(list)
        own = super().load().items()
        return {
            split: ArrayDataset(data.images, data.labels.sort().values, split)
            for split, data in own
        }

    def on_before_batch_transfer(self, batch, dataloader_idx):
        one: Any = self.trainer
        self.seen[self.split_in_use, one.current_epoch] += batch.indices.tolist()
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
        assert sorted(first) != list(range(16))


class Order:
    asked = False

    def __iter__(self):
        self.asked = True
        return iter(range(4))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_starts_nothing_before_its_first_batch(num_workers):
    order, before = Order(), len(multiprocessing.active_children())
    options: dict[str, Any] = {
        "sampler": order,
        "batch_size": 2,
        "collate_fn": list,
        "num_workers": num_workers,
    }
    iterator = iter(LazyDataLoader(cast(Any, range(4)), **options))
    assert not order.asked
    assert len(multiprocessing.active_children()) == before
    assert next(iterator) == [0, 1]
    assert order.asked
    assert len(multiprocessing.active_children()) == before + num_workers
    assert list(iterator) == [[2, 3]]


def test_numbers_within_bounds_are_plain_in_a_checkpoint(workplace):
    small("--data.class_balance=0.5", "--data.mean=[0.4,0.5,0.6]", "--trainer.max_steps=1")
    options = load(Path("runs/run/checkpoints/last.ckpt"))[
        "datamodule_hyper_parameters"
    ]  # with weights_only=True
    assert (options["class_balance"], options["mean"]) == (0.5, [0.4, 0.5, 0.6])
    assert {type(value) for value in (options["class_balance"], options["batch_size"])} == {
        float,
        int,
    }


@cases(
    "options world_size text",
    ({"batch_size": 61}, 1, "batch_size must be at most 60"),
    ({"crop_padding": 12}, 1, "crop_padding must be below 12"),
    ({"batch_size": 10}, 3, "batch_size must be a multiple of 3, the number of devices, such as 9"),
)
def test_options_that_images_or_devices_do_not_allow_are_refused_by_name(options, world_size, text):
    def train():
        data = attached(NoiseDataModule(**{"batch_size": 12} | options), world_size=world_size)
        epochs(data, data.train_dataloader())

    with pytest.raises(UserError, match=rf"--data\.{text}"):
        train()


def test_an_example_input_of_a_model_passes_the_transfer_hooks(tmp_path):
    example, files = torch.zeros(1, 3, 12, 12), FolderDataModule(str(tmp_path), on_bad_image="skip")
    files.trainer = stub_trainer()
    assert files.on_before_batch_transfer(cast(Any, example), 0) is example
    assert attached(NoiseDataModule(batch_size=12)).on_after_batch_transfer(example, 0) is example


def test_a_batch_may_be_the_whole_training_set_and_the_data_are_opened_once():
    data = attached(NoiseDataModule(batch_size=60))
    assert len(list(data.train_dataloader())) == 1
    before = data.splits["train"]
    data.setup("test")
    assert data.splits["train"] is before
