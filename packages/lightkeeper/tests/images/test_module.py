"""What a data module serves: evaluation as it is, training augmented, each part a fair one."""

import re
import shutil
from collections import defaultdict
from itertools import chain
from typing import Any, cast

import numpy as np
import pytest
import torch
from lightkeeper.exact import ExactDataLoader, LastCheckpoint, UserError, uniform
from lightkeeper.images import ArrayDataset
from lightkeeper.images._batch import weighted_draw
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler, default_convert
from torchvision.transforms import v2

from tests.image_files import write_folder
from tests.job import trainer
from tests.stubs import (
    Files,
    attached,
    by_index,
    epoch_of,
    joined,
    require_equal,
)
from tests.toy import (
    LAST,
    RUN,
    ToyClassifier,
    ToyData,
    cases,
    differences,
    fit,
    load,
    outcome,
    toy,
    toy_trainer,
)


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_shows_the_images_as_they_are_always_in_the_same_order(split):
    options: dict[str, Any] = {
        "batch_size": 4,
        "batch_transforms": [v2.MixUp()],
        "train_transforms": [v2.RandAugment()],
    }
    data, again = (attached(ToyData(**options, seed=of), epoch=of, training=False) for of in (0, 1))
    batches = epoch_of(data, split)
    dataset = data.splits[split]
    require_equal(by_index(batches), (dataset.images, dataset.labels, torch.arange(len(dataset))))
    for first, second in zip(batches, epoch_of(again, split), strict=True):
        require_equal(first, second)


class SortedDataModule(ToyData):
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


@cases(
    "limits class_balance",
    ({"limit_val_batches": 2}, 0.0),
    ({"overfit_batches": 2}, 0.0),
    ({"overfit_batches": 2}, 1.0),
)
def test_a_part_of_sorted_data_is_a_shuffle_of_all_classes_and_the_same_each_epoch(
    limits, class_balance
):
    data: Any = SortedDataModule(60, val=60, batch_size=8, class_balance=class_balance)
    trainer(1, max_epochs=3, **limits).fit(toy(), datamodule=data)
    for split in ("train", "val") if "overfit_batches" in limits else ("val",):
        first, *others = (data.seen[split, epoch] for epoch in range(3))
        assert len(first) == 16
        assert all(other == first for other in others)
        assert set(data.splits[split].labels[torch.tensor(first) % 60].tolist()) == {0, 1, 2}


@cases(
    "options world_size text",
    ({"batch_size": 61}, 1, "batch_size: must be at most 60, the number of training images"),
    ({"batch_size": 10}, 3, "batch_size: must be a multiple of 3, .* such as 9"),
    ({"device_cache": True, "train_transforms": [v2.Identity()]}, 1, "device_cache: needs"),
    ({"repeats": 13}, 1, "repeats: must be at most the batch_size, 12, got 13"),
    ({"val": 2}, 3, "the val set has fewer .* there are processes, 3; use 2 devices"),
    ({"test": 2}, 3, "the test set has fewer .* there are processes, 3; use 2 devices"),
    ({"test": 0}, 1, "the test set has fewer images, 0, than there are processes, 1$"),
)
def test_options_that_images_or_devices_do_not_allow_are_refused_by_name(options, world_size, text):
    data = ToyData(60, **{"batch_size": 12} | options)
    with pytest.raises(UserError, match=text):
        _ = [epoch_of(attached(data, world_size=world_size), split) for split in ("train", "val")]


def test_a_checkpoint_names_the_transforms_and_holds_plain_numbers(workplace):
    fit(
        *("--data.class_balance=0.5", "--trainer.max_steps=1"),
        "--data.train_transforms+=torchvision.transforms.v2.RandAugment",
        "--data.train_transforms.magnitude=5",
        "--data.train_transforms+=tests.images.test_transforms.of_numpy",
    )
    checkpoint = load(LAST)  # with weights_only=True
    assert checkpoint["datamodule_hyper_parameters"]["class_balance"] == 0.5
    augment, function = checkpoint["about"]["transforms"]["train_transforms"]
    options = "num_ops=2, magnitude=5, num_magnitude_bins=31"
    # torchvision writes nearest, or before 0.29 InterpolationMode.NEAREST
    assert re.fullmatch(rf"RandAugment\(interpolation=[\w.]+, {options}\)", augment)
    assert function == "<function of_numpy>"


COUNTS = torch.tensor([70, 20, 5, 1])
LABELS = torch.arange(4).repeat_interleave(COUNTS)[
    torch.randperm(96, generator=torch.Generator().manual_seed(0))
]


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("batch_size", [12, 36])  # of 36, an epoch of 96 images has two
def test_images_come_as_often_as_class_balance_says(balance, batch_size):
    epochs = [weighted_draw(LABELS, COUNTS, batch_size, balance, 0, epoch) for epoch in range(400)]
    drawn = torch.cat(epochs) % 96
    assert len(drawn) == 400 * (96 // batch_size * batch_size)
    shares = (COUNTS**-balance / (COUNTS ** (1 - balance)).sum())[LABELS]
    expected = len(drawn) * shares
    error = (drawn.bincount(minlength=96) - expected).abs()
    assert (error < 5 * (expected * (1 - shares)).sqrt()).all()


class Beside(ToyData):
    """Serves its images beside other batches, and blackens what it augments."""

    def augment(self, batch, epoch):
        return batch._replace(images=batch.images * 0)

    def train_dataloader(self):
        return CombinedLoader({"own": super().train_dataloader(), "other": range(1, 3)})

    def val_dataloader(self):
        return [super().test_dataloader(), super().val_dataloader()]


class Both(ToyClassifier):
    """Keeps the images of each validation loader."""

    shown: Any

    def training_step(self, batch, batch_idx):
        assert not batch["own"].images.any()
        assert batch["other"] in (1, 2)
        return super().training_step(batch["own"], batch_idx)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.shown[dataloader_idx] += [*zip(batch.indices.tolist(), batch.images, strict=True)]


@pytest.mark.parametrize("device_cache", [False, True])
def test_each_of_several_loaders_serves_its_own_images(device_cache):
    data = Beside(device_cache=device_cache)
    model: Any = toy(Both)
    model.shown = defaultdict(list)
    trainer(1).fit(model, datamodule=data)
    for split, shown in zip(("test", "val"), model.shown.values(), strict=True):
        assert len(shown) == len(data.splits[split])
        assert all(torch.equal(image, data.splits[split].image(index)) for index, image in shown)


class ShiftedData(ToyData):
    """Adds a number to the pixels of each training image."""

    def augment(self, batch, epoch):
        numbers = uniform(self.seed, epoch, batch.indices, 1000)
        return batch._replace(images=batch.images ^ (256 * numbers).byte()[:, :, None, None])


@pytest.mark.parametrize("device_cache", [False, True])
def test_class_balance_draws_an_image_again_which_is_augmented_anew(device_cache):
    options: Any = {"class_balance": 1.0, "device_cache": device_cache}
    data = attached(ShiftedData(60, batch_size=12, **options))
    data.splits["train"].labels = torch.tensor([0] * 54 + [1] * 3 + [2] * 3)
    images, labels, indices = map(torch.cat, zip(*epoch_of(data), strict=True))
    assert torch.equal(labels, data.splits["train"].labels[indices % 60])
    assert labels.bincount(minlength=3).min() > 10
    assert len(images[indices % 60 == 59].unique(dim=0)) >= 3


class Ordered(Files):
    """Takes two images in turns, by an order of its own."""

    def order(self, epoch):
        return torch.arange(len(self.splits["train"])) % 2


class Weighted(Ordered):
    """The same by a loader, as of any dataset of torch."""

    def train_dataloader(self):
        train = Subset(cast(Any, self.splits["train"]), self.order(0).tolist())
        sampler = WeightedRandomSampler([1.0] * len(train), len(train), replacement=False)
        return DataLoader(train, self.batch_size, sampler=sampler, collate_fn=default_convert)


@pytest.mark.parametrize("cls", [Ordered, Weighted])
def test_an_order_of_ones_own_augments_an_image_anew_and_a_loader_of_ones_own_is_noted(
    workplace, capsys, cls
):
    data = cls(str(write_folder(workplace / "images", {"dark": 12, "grey": 12, "light": 12})))
    batch = joined(chain(*(epoch_of(attached(data, epoch=epoch)) for epoch in range(2))))
    crops = batch.images[batch.indices % len(data.splits["train"]) == 1].unique(dim=0)
    own = toy_trainer(max_epochs=1, callbacks=[LastCheckpoint()], enable_checkpointing=True)
    own.fit(toy(), datamodule=data)
    said = capsys.readouterr().err
    is_loader = cls is Weighted
    assert len(crops) == (1 if is_loader else len(data.splits["train"]) // 4 * 4)
    assert ("each image gets the same crop and transforms in each epoch" in said) == is_loader
    assert ("its DataLoader begins the epoch anew" in said) == is_loader
    assert "ExactDataLoader" not in said
    with pytest.raises(UserError, match="dataset must be map-style with a length, got FileDataset"):
        ExactDataLoader(data.splits["train"], own, 4)


@pytest.mark.parametrize("balance", [0.0, 1.0])
@pytest.mark.parametrize("repeats", [1, 3, 4])
def test_repeats_takes_images_as_the_sampler_of_timm_does_each_time_augmented_anew(
    repeats, balance
):
    options: Any = {"batch_size": 12, "class_balance": balance}
    once = torch.cat([batch.indices for batch in epoch_of(attached(ShiftedData(300, **options)))])
    timm = pytest.importorskip("timm.data.distributed_sampler", reason="timm is not installed")
    for world_size in (1, 2, 3):
        for rank in range(world_size):
            theirs = timm.RepeatAugSampler(once, world_size, rank, False, repeats, 12)
            data = ShiftedData(300, **options, repeats=repeats)
            images, labels, indices = map(
                torch.cat,
                zip(*epoch_of(attached(data, world_size=world_size, rank=rank)), strict=True),
            )
            dataset: Any = data.splits["train"]
            assert torch.equal(indices % 300, once[[*theirs]] % 300)
            assert torch.equal(labels, dataset.labels[indices % 300])
            assert len(indices.unique()) == 300 // world_size
            added = images ^ dataset.images[indices % 300]
            assert len(added.flatten(1).unique(dim=0)) > 100 / world_size


class Around(LightningDataModule):
    """Serves the loaders of a data module, but calls none of its hooks."""

    def train_dataloader(self):
        inner = ToyData()
        inner.setup("fit")
        return inner.train_dataloader()


@pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`", "ignore:.*many workers")
@pytest.mark.parametrize("data", [Around(), Around().train_dataloader()])
def test_loaders_without_the_hooks_of_their_data_module_are_refused(data):
    with pytest.raises(UserError, match=r"need it: trainer\.fit\(model, datamodule=data\)$"):
        toy_trainer().fit(toy(), data)


def test_images_that_are_kept_on_the_device_train_to_the_same_weights(workplace):
    ends = []
    for kept in ("false", "true"):
        fit(f"--data.device_cache={kept}", "--data.class_balance=0.5")
        ends.append(outcome(RUN))
        shutil.rmtree("runs")
    assert not differences(*ends)


@cases("positions", [3, 1], np.array([3, 1], np.uint8), torch.tensor([3, 1], dtype=torch.int16))
def test_a_sampler_of_ones_own_yields_numbers_of_any_library(positions):
    data = ToyData()
    data.setup("fit")
    train = cast(Any, data.splits["train"])
    loader = DataLoader[Any](train, 2, sampler=positions, collate_fn=default_convert)
    assert next(iter(loader)).indices.tolist() == [3, 1]
