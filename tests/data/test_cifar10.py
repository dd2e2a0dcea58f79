"""CIFAR-10 without a network."""

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import calculate_md5

from project.data import CIFAR10DataModule
from tests.stubs import attached

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_cifar10(root, monkeypatch, counts=(20,) * 6):
    """Writes CIFAR-10's files of so many random images, and lets torchvision expect these; their images and labels."""
    folder = root / CIFAR10.base_folder
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    batches = []
    files = [*(f"data_batch_{number}" for number in range(1, len(counts))), "test_batch"]
    for name, count in zip(files, counts, strict=True):
        images = dice.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        labels = dice.permutation(np.arange(count) % 10).tolist()
        (folder / name).write_bytes(
            pickle.dumps({"data": images.reshape(count, -1), "labels": labels})
        )
        batches.append((torch.from_numpy(images), labels))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": NAMES}))
    *train, test = ([name, calculate_md5(folder / name)] for name in files)
    for name, value in {"train_list": train, "test_list": [test]}.items():
        monkeypatch.setattr(CIFAR10, name, value)
    monkeypatch.setattr(
        CIFAR10, "meta", CIFAR10.meta | {"md5": calculate_md5(folder / "batches.meta")}
    )
    return batches


def pairs(images, labels):
    return [(image.tolist(), int(label)) for image, label in zip(images, labels, strict=True)]


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"val_fraction": 0.25}, 5)])
def test_images_are_those_of_the_files_and_each_class_has_its_share_in_validation(
    tmp_path, monkeypatch, options, count
):
    *training, test = write_cifar10(tmp_path, monkeypatch, (120, 80, 30))
    data = attached(CIFAR10DataModule(str(tmp_path), batch_size=20, num_workers=0, **options))
    parts = {name: pairs(split.images, split.labels) for name, split in data.splits.items()}
    assert data.class_names == NAMES
    assert parts["test"] == pairs(*test)  # in its order
    assert sorted(parts["train"] + parts["val"]) == sorted(
        pair for batch in training for pair in pairs(*batch)
    )
    assert Counter(label for _, label in parts["val"]) == dict.fromkeys(range(10), count)


def test_a_share_of_the_training_images_is_part_of_a_larger_one(tmp_path, monkeypatch):
    write_cifar10(tmp_path, monkeypatch, (120, 80, 30))

    def parts(share):
        data: Any = CIFAR10DataModule(str(tmp_path), batch_size=20, train_fraction=share)
        return {name: pairs(split.images, split.labels) for name, split in data.load().items()}

    whole, half, tenth = (parts(share) for share in (1.0, 0.5, 0.1))
    for part in (half, tenth):
        assert (part["val"], part["test"]) == (whole["val"], whole["test"])
    assert all(pair in half["train"] for pair in tenth["train"])
    assert Counter(label for _, label in half["train"]) == dict.fromkeys(range(10), 9)
    assert Counter(label for _, label in tenth["train"]) == dict.fromkeys(range(10), 2)
