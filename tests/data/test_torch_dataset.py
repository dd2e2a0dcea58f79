"""Any map-style dataset: what is served, at random or not, and what is refused."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from project.data import FolderDataModule, TorchDatasetModule
from project.engine.errors import UserError
from project.engine.loading.batch import ImageBatch
from project.fit import FitCLI
from tests.conftest import QUIET, TINY_TRAINER, cases, evaluate, fit
from tests.data.stubs import attached
from tests.engine.loading.image_files import noise, write_folder
from tests.small import load, one_line

CLASSES = {"rose": 10, "daisy": 20, "tulip": 15}
SPLITS = ("train", "val", "test")
FAKE = [
    "--data=TorchDatasetModule",
    "--data.train=torchvision.datasets.FakeData",
    "--data.train.image_size=[3,20,24]",
]
SMALL = ["--data.image_size=16", "--data.batch_size=8", "--data.num_workers=0"]
TINY_MODEL = ["--model.arch=resnet9_slim", *TINY_TRAINER, *QUIET, "--name=run"]


class Samples(Dataset[Any]):
    """Samples of a list, or computed from the index, and attributes."""

    def __init__(self, samples: Any, size: int | None = None, **facts: Any) -> None:
        self.samples, self.size = samples, size
        self.__dict__.update(facts)

    def __len__(self) -> int:
        return len(self.samples) if self.size is None else self.size

    def __getitem__(self, index: int) -> Any:
        return self.samples(index) if callable(self.samples) else self.samples[index]


def module(train: Any, **options: Any) -> Any:
    return TorchDatasetModule(
        train, **{"image_size": 16, "batch_size": 4, "num_workers": 0} | options
    )


def labelled(count: int, **facts: Any) -> Samples:
    """Noise, whose label is the remainder of its position."""
    return Samples([(noise(20, 18, seed=index), index % 3) for index in range(count)], **facts)


class Plain:
    """No dataset of torch, and without a list of labels."""

    def __init__(self, size: int = 30) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return noise(20, 18, seed=index), index % 3


def joined(batches: Any) -> ImageBatch:
    return ImageBatch(*(torch.cat(field) for field in zip(*batches, strict=True)))


@cases(
    "fit size loader",  # the folder decodes larger images at a fraction of their size, as bytes are
    *(
        ("crop", 16, default_loader),
        ("pad", 16, default_loader),
        ("squash", 8, lambda path: Path(path).read_bytes()),
    ),
)
def test_an_image_folder_of_torchvision_is_served_as_the_folder_is_to_the_last_bit(
    tmp_path, fit, size, loader
):
    for split in SPLITS:
        write_folder(tmp_path / split, CLASSES)
    sets: dict[str, Any] = {
        split: ImageFolder(str(tmp_path / split), loader=loader) for split in SPLITS
    }
    options: dict[str, Any] = {
        "image_size": size,
        "batch_size": 4,
        "num_workers": 0,
        "seed": 3,
        "fit": fit,
    }
    theirs = attached(TorchDatasetModule(**sets, **options), epoch=2)
    ours = attached(FolderDataModule(str(tmp_path), **options), epoch=2)
    assert theirs.class_names == ours.class_names
    for split in SPLITS:
        assert torch.equal(theirs.splits[split].labels, ours.splits[split].labels)
        loaders = (getattr(data, f"{split}_dataloader")() for data in (theirs, ours))
        for found, expected in zip(*map(joined, loaders), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "facts", [{}, {"targets": [index % 3 for index in range(300)]}], ids=["unknown", "known"]
)
def test_missing_splits_are_cut_alike_everywhere_and_samples_that_are_added_move_none(facts):
    names = {"class_names": ["a", "b", "c"]}
    data = module(labelled(300, **facts), **names)
    cut = data.positions()
    assert sorted(position for part in cut.values() for position in part) == list(range(300))
    assert all(20 <= len(cut[split]) <= 40 for split in ("val", "test"))
    assert cut == module(labelled(300, **facts), **names).positions()
    assert cut != module(labelled(300, **facts), split_seed=1, **names).positions()
    more = {"targets": [index % 3 for index in range(330)]} if facts else {}
    grown = module(labelled(330, **more), **names).positions()
    assert all({*cut[split]} <= {*grown[split]} for split in SPLITS)
    if facts:  # each class by itself
        assert {len([p for p in cut["test"] if p % 3 == label]) > 0 for label in range(3)} == {True}


def test_given_splits_are_taken_whole():
    data = attached(
        module(
            labelled(30, targets=[i % 3 for i in range(30)]),
            val=labelled(7),
            test=lambda: labelled(9),
        )
    )
    assert {split: len(dataset) for split, dataset in data.splits.items()} == {
        "train": 30,
        "val": 7,
        "test": 9,
    }
    assert (
        len(module(labelled(30), val=labelled(7), class_names=["a", "b", "c"]).positions()["val"])
        == 7
    )


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


IMAGE = noise(20, 18)


@cases(
    "dataset text",
    (Endless(), "--data.train: Endless is not map-style"),
    (Samples([]), "--data.train: Samples has no samples"),
    (Samples([{"image": IMAGE}] * 30), r"must be \(image, label\), got dict"),
    (Samples([(torch.rand(3, 8, 8), 0)] * 30), "got torch.float32; leave out ToTensor"),
    (
        Samples([(np.zeros((8, 8, 3)), 0)] * 30),
        "must be of PIL, a uint8 tensor or a file's bytes, got ndarray",
    ),
    (
        Samples([(torch.zeros(8, 8, 3, dtype=torch.uint8), 0)] * 30),
        r"height, width\), got \(8, 8, 3\)$",
    ),
    (Samples([(torch.zeros(4, 8, 8, dtype=torch.uint8), 0)] * 30), r"got \(4, 8, 8\)"),
    (Samples([(IMAGE.convert("L").convert("F"), 0)] * 30), "32 bits"),
    (Samples([(IMAGE, 0.0)] * 30), "'float' object cannot be interpreted as an integer"),
    (Samples([(IMAGE, 2)] * 30), "its label must be from 0 to 1, got 2; see --data.class_names"),
    (Samples([(IMAGE, -1)] * 30), "its label must be from 0 to 1, got -1"),
    (
        Samples([(IMAGE, 0)] * 30, targets=[1] * 30),
        "its label is 0, but the dataset's list of labels says 1",
    ),
    (Samples([(IMAGE, 0)] * 30, targets=[2] * 30), "has labels from 2 to 2, not from 0 to 1"),
    (
        TensorDataset(torch.zeros(9, 3, 8, 8, dtype=torch.uint8)),
        r"must be \(image, label\), got tuple",
    ),
    (
        Samples([(b"no image", 0)] * 30),
        r"^'Samples\[\d+\]' cannot be read as an image \(not an image\)",
    ),
)
def test_what_is_no_image_with_a_label_is_refused_before_training(dataset, text):
    with pytest.raises(UserError, match=text):
        attached(module(dataset, class_names=["a", "b"]))


def test_classes_must_be_known_and_the_same_in_all_splits():
    with pytest.raises(UserError, match="give their names with --data"):
        _ = module(labelled(30)).class_names
    with pytest.raises(UserError, match="need the same classes in the same order"):
        _ = module(
            labelled(30, classes=["a", "b", "c"]), val=labelled(9, classes=["a", "b", "x"])
        ).class_names


def test_one_process_at_a_time_downloads(tmp_path):
    def downloading(root: str, download: bool) -> Dataset[Any]:
        lock = FileLock(tmp_path / ".set.lock")
        if download:
            with pytest.raises(Timeout):
                lock.acquire(timeout=0)
        return labelled(30, classes=["a", "b", "c"])

    for download in (True, False):
        data = module(functools.partial(downloading, root=str(tmp_path / "set"), download=download))
        assert len(data.class_names) == 3


def test_the_command_trains_on_it_and_a_checkpoint_neither_imports_it_nor_measures_on_something_else(
    workplace, capsys
):
    train = [*FAKE, "--data.train.size=60"]
    test = [
        "--data.test=torchvision.datasets.FakeData",
        "--data.test.size=10",
        "--data.test.image_size=[3,20,24]",
    ]
    fit(*train, *test, *SMALL, *TINY_MODEL)
    best = "runs/run/checkpoints/best.ckpt"
    about = load(Path(best))["about"]["data"]
    assert (about["init_args"]["train"], about["init_args"]["test"]) == ("FakeData", "FakeData")
    said = one_line(lambda: evaluate(best), capsys)
    assert "trained with the dataset FakeData as train" in said
    assert "FakeData as test" in one_line(lambda: evaluate(best, *train), capsys)
    evaluate(best, *train, *test)
    assert "/10)" in capsys.readouterr().out


def test_a_plain_class_with_samples_and_a_length_is_taken_by_the_command(workplace):
    options = [
        "--data=TorchDatasetModule",
        f"--data.train={__name__}.Plain",
        "--data.train.size=33",
    ]
    cli = FitCLI([*options, "--data.class_names=[a,b,c]", *SMALL, *TINY_MODEL])
    data = attached(cli.datamodule)
    assert sum(map(len, data.splits.values())) == 33
