import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR10

from project.data import CIFAR10DataModule
from project.engine.errors import UserError
from tests.engine.run.archives import md5

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Three small files in CIFAR-10's format; gives their images and labels, those of the test set last."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    dice = np.random.default_rng(0)
    batches = []
    for name, count in {"data_batch_1": 120, "data_batch_2": 80, "test_batch": 30}.items():
        images = dice.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        labels = dice.permutation(np.arange(count) % 10).tolist()
        (folder / name).write_bytes(pickle.dumps({"data": images.reshape(count, -1), "labels": labels}))
        batches.append((torch.from_numpy(images), labels))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": NAMES}))
    sums = {path.name: md5(path) for path in folder.iterdir()}
    monkeypatch.setattr(CIFAR10, "train_list", [[name, sums[name]] for name in ("data_batch_1", "data_batch_2")])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    return batches


def module(root, **options):
    data = CIFAR10DataModule(str(root), batch_size=20, num_workers=0, **options)
    data.prepare_data()
    data.setup("fit")
    return data


def pairs(*sets):
    return [(image.numpy().tobytes(), int(label)) for each in sets for image, label in zip(*each, strict=True)]


def test_images_are_those_of_the_files_and_class_names_torchvisions(tmp_path, written):
    data = module(tmp_path)
    train, val, test = (
        pairs((data.splits[name].images, data.splits[name].labels)) for name in ("train", "val", "test")
    )
    assert data.class_names == CIFAR10(str(tmp_path)).classes
    assert test == pairs(written[2])  # in its order
    assert sorted(train + val) == sorted(pairs(*written[:2]))


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"val_fraction": 0.25}, 5)])
def test_every_class_gives_its_share_to_validation(tmp_path, written, options, count):
    splits = module(tmp_path, **options).splits
    assert Counter(splits["val"].labels.tolist()) == dict.fromkeys(range(10), count)
    assert Counter(splits["train"].labels.tolist()) == dict.fromkeys(range(10), 20 - count)


def test_missing_files_and_no_network_give_one_error_that_tells_what_to_do(tmp_path):
    with pytest.raises(UserError, match=rf"cannot be downloaded to '{tmp_path}'.*cifar-10-batches-py"):
        CIFAR10DataModule(str(tmp_path)).prepare_data()
