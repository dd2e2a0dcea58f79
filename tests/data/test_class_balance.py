"""Classes of different sizes, evened out in training: how often each comes, which images, and in which order."""

from collections import Counter
from itertools import chain
from typing import Any

import pytest
import torch

from project.data import FolderDataModule
from project.engine.errors import UserError
from project.engine.loading.batch import make_keys, split_keys
from project.engine.training.sampler import BalancedOrder, TrainingSampler
from tests.data.stubs import NoiseDataModule, attached
from tests.engine.loading.image_files import write_folder

COUNTS = [70, 20, 5, 1]
SHUFFLE = torch.randperm(96, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([label for label, count in enumerate(COUNTS) for _ in range(count)])[SHUFFLE]
BATCH = 12


def order(balance, seed=0, batch_size=BATCH):
    return BalancedOrder(LABELS, batch_size, seed, balance)


def images(found):
    return (found % len(LABELS)).tolist()


@pytest.mark.parametrize("balance", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("batch_size", [12, 36])  # of 36, an epoch of 96 images has two
def test_classes_come_as_often_as_theory_says(balance, batch_size):
    epochs, length = 200, 96 // batch_size * batch_size
    one = order(balance, batch_size=batch_size)
    total = Counter[int]()
    weights = [count ** (1 - balance) for count in COUNTS]
    expected = [length * weight / sum(weights) for weight in weights]
    for epoch in range(epochs):
        found = one(epoch)
        assert len(found) == length
        counts = Counter(LABELS[images(found)].tolist())
        assert all(abs(counts[label] - expected[label]) < 1 for label in range(4))  # up or down
        total += counts
    for label in range(4):
        assert abs(total[label] / epochs - expected[label]) < 5 * 0.5 / epochs**0.5


def test_the_mean_count_is_exact_where_an_epoch_has_hardly_more_images_than_classes():
    labels = torch.tensor([0, 0, 0, 1, 2, 3, 4])
    one = BalancedOrder(labels, 7, 0, 1.0)
    total = Counter(chain.from_iterable(labels[one(epoch) % 7].tolist() for epoch in range(1000)))
    assert all(abs(total[label] - 1400) < 5 * 1000**0.5 / 2 for label in range(5))


@pytest.mark.parametrize("balance", [0.3, 1.0])
def test_all_images_of_a_class_are_used_before_one_comes_again(balance):
    one = order(balance)
    seen = Counter[int]()
    for epoch in range(40):
        seen.update(images(one(epoch)))
        for label, count in enumerate(COUNTS):
            times = [seen[index] for index in torch.where(LABELS.eq(label))[0].tolist()]
            assert len(times) == count
            assert max(times) - min(times) <= 1


def test_without_balance_every_image_comes_once():
    assert sorted(images(order(0.0)(3))) == list(range(96))


def test_an_image_that_comes_again_has_another_index_and_so_another_augmentation():
    for epoch in range(5):
        found = order(1.0)(epoch).tolist()
        assert len({*found}) == len(found) > len({index % 96 for index in found})


def test_orders_differ_by_seed_and_epoch_and_depend_on_nothing_else():
    orders = {(seed, epoch): tuple(order(1.0, seed)(epoch).tolist()) for seed in range(4) for epoch in range(4)}
    assert len({*orders.values()}) == len(orders)
    one = order(1.0, 2)
    assert [tuple(one(epoch).tolist()) for epoch in (3, 0)] == [orders[2, 3], orders[2, 0]]
    places = [index for index, label in enumerate(LABELS[[index % 96 for index in orders[0, 0]]]) if label == 3]
    assert max(places) - min(places) > 30  # a class does not come in a block


def test_labels_without_an_image_take_no_share():
    labels = torch.tensor([0, 0, 0, 7, 7, 9])
    counts = Counter(labels[BalancedOrder(labels, 6, 0, 1.0)(0) % 6].tolist())
    assert counts == {0: 2, 7: 2, 9: 2}


def keys(epoch, done=0, world_size=1, rank=0, **options):
    position = (epoch, done)
    return list(TrainingSampler(96, BATCH, 0, lambda: position, world_size, rank, balanced=order(1.0), **options))


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(("epoch", "done"), [(0, 0), (3, 0), (3, 5)])
def test_a_global_batch_is_the_same_on_any_number_of_devices_and_after_a_restart(world_size, epoch, done):
    whole, share = keys(epoch)[done * BATCH :], BATCH // world_size
    shares = [keys(epoch, done, world_size, rank) for rank in range(world_size)]
    for batch in range(len(whole) // BATCH):
        together = chain.from_iterable(part[batch * share : (batch + 1) * share] for part in shares)
        assert sorted(together) == sorted(whole[batch * BATCH : (batch + 1) * BATCH])


def test_for_overfitting_every_epoch_has_the_images_of_the_first():
    first, later = (split_keys(keys(epoch, same_each_epoch=True), 96) for epoch in (0, 4))
    assert torch.equal(first[1], later[1])
    assert (first[0], later[0]) == (0, 4)


def test_keys_are_split_into_what_they_were_made_of():
    indices = torch.tensor([0, 6, 5, 6 + 7, 7 * 100_000 + 3])
    for epoch in (0, 1, 2**24 - 1):
        found = make_keys(epoch, indices, 7)
        assert torch.equal(found % 7, indices % 7)
        back = split_keys(found.tolist(), 7)
        assert back[0] == epoch
        assert torch.equal(back[1], indices)


class Skewed(NoiseDataModule):
    """Nine in ten images are of the first class."""

    def load(self):
        found = super().load()
        found["train"].labels = (torch.arange(60) % 10 == 9).long() * (1 + torch.arange(60) // 10 % 2)
        return found


@pytest.mark.parametrize("device_cache", [False, True])
def test_the_data_module_counts_and_evens_out(device_cache):
    data = attached(Skewed(batch_size=12, class_balance=1.0, device_cache=device_cache, crop_padding=2))
    assert data.class_counts() == [54, 3, 3]
    batches = [data.on_after_batch_transfer(batch, 0) for batch in data.train_dataloader()]
    assert torch.cat([batch.labels for batch in batches]).bincount().tolist() == [20, 20, 20]
    train = data.splits["train"]
    views: dict[int, set[bytes]] = {}
    for batch in batches:
        for image, label, index in zip(batch.images, batch.labels.tolist(), batch.indices.tolist(), strict=True):
            assert label == train.labels[index % 60]
            views.setdefault(index % 60, set()).add(image.numpy().tobytes())
    assert max(map(len, views.values())) >= 4  # of seven or so, shifted and mirrored


def test_files_are_cropped_anew_when_they_come_again_and_alike_in_any_batch(tmp_path):
    root = write_folder(tmp_path, {"a": 40, "b": 4}, size=(60, 40))
    data: Any = attached(FolderDataModule(str(root), image_size=32, num_workers=0, batch_size=32, class_balance=1.0))
    (batch,) = data.train_dataloader()
    size, rare = len(data.splits["train"]), batch.labels == 1
    assert int(rare.sum()) == 16
    assert len({image.numpy().tobytes() for image in batch.images[rare]}) == 16
    for image, index in zip(batch.images, batch.indices, strict=True):
        (key,) = make_keys(0, index[None], size).tolist()
        assert torch.equal(data.splits["train"].__getitems__([key]).images[0], image)


@pytest.mark.parametrize("balance", [-0.1, 1.1])
def test_other_values_are_refused(balance):
    with pytest.raises(UserError, match=r"--data\.class_balance must be from 0 to 1"):
        NoiseDataModule(class_balance=balance)
