"""Any map-style dataset: what is served, at random or not, and what is refused."""

import functools
import random
import re
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock, Timeout
from lightkeeper.exact import UserError
from lightkeeper.images import MapDatasetModule
from torch.utils.data import ChainDataset, Subset, TensorDataset
from torchvision.datasets import FakeData, ImageFolder
from torchvision.datasets.folder import default_loader

from tests.image_files import noise, write_folder
from tests.stubs import Files, Samples, attached, cases, joined
from tests.toy import BEST, ToyFit, evaluate, fit, one_line, read_json

SPLITS = ("train", "val", "test")
FAKE = [
    "--data=MapDatasetModule",
    "--data.train=torchvision.datasets.FakeData",
    "--data.train.image_size=[3,20,24]",
]
SMALL = ["--data.image_size=16", "--data.batch_size=8", "--data.num_workers=0"]
NAMES = ["a", "b", "c"]
IMAGE = noise(20, 18)


def module(train: Any, **options: Any) -> Any:
    sizes = {"image_size": 16, "batch_size": 4, "num_workers": 0}
    return MapDatasetModule(train, **sizes | options)


def made(size: int) -> Samples:
    return Samples(size=size, classes=NAMES)


def test_a_function_with_options_makes_a_dataset_and_no_checkpoint_remembers_them(workplace):
    options = [f"--data.train={__name__}.made", "--data.train.size=30"]
    cli = ToyFit(["--data=MapDatasetModule", *options, *SMALL])
    assert len(attached(cli.datamodule).datasets["train"]) == 30
    assert cli.data_flags() == options


def targets(size: int) -> list[int]:
    return [index % 3 for index in range(size)]


def require_served_alike(*modules: Any) -> None:
    """Compares the batches of two data modules to the last bit."""
    first, second = (attached(module, epoch=2) for module in modules)
    assert first.class_names == second.class_names
    for split in SPLITS:
        assert torch.equal(first.splits[split].labels, second.splits[split].labels)
        loaders = (getattr(data, f"{split}_dataloader")() for data in (first, second))
        assert all(map(torch.equal, *map(joined, loaders)))


@cases(
    "fit size loader",  # the folder decodes larger images at a fraction of their size, as bytes are
    ("crop", 16, default_loader),
    ("pad", 16, default_loader),
    ("squash", 8, lambda path: Path(path).read_bytes()),
)
def test_an_image_folder_of_torchvision_is_served_by_workers_as_the_folder_is_to_the_last_bit(
    tmp_path, fit, size, loader
):
    classes = {"rose": 10, "daisy": 20, "tulip": 15}
    sets: Any = {
        split: ImageFolder(str(write_folder(tmp_path / split, classes)), loader=loader)
        for split in SPLITS
    }
    options: Any = {"image_size": size, "batch_size": 4, "seed": 3, "fit": fit}
    require_served_alike(
        MapDatasetModule(**sets, **options, num_workers=2),
        Files(str(tmp_path), **options, num_workers=0),
    )


def test_what_is_random_in_a_data_set_depends_on_seed_epoch_and_index_alone():
    held = random.Random()

    def draw(index: int) -> tuple[torch.Tensor, int]:
        shared = [*torch.rand(2), *np.random.rand(2), random.random()]  # noqa: NPY002
        numbers = [*shared, held.random()]
        pixels = torch.tensor([int(256 * number) for number in numbers], dtype=torch.uint8)
        return pixels.view(1, 1, 6).expand(3, 6, 6), index % 2

    def epoch(workers: int = 0, epoch: int = 1, seed: int = 0, done: int = 0) -> dict[int, bytes]:
        options = {"crop_scale": (1.0, 1.0), "num_workers": workers, "seed": seed}
        data = module(Samples(draw, 40), class_names=NAMES, **options)
        batch = joined(attached(data, epoch=epoch, batches_done=done).train_dataloader())
        pixels = [image.numpy().tobytes() for image in batch.images]
        return dict(zip(batch.indices.tolist(), pixels, strict=True))

    alone = epoch()
    torch.manual_seed(99)
    assert epoch(workers=2) == alone
    assert epoch(done=3).items() < alone.items()
    drawn = [alone, epoch(epoch=2), epoch(seed=1)]
    assert len({image for images in drawn for image in images.values()}) == sum(map(len, drawn))


@pytest.mark.parametrize("known", [False, True])
def test_missing_splits_are_cut_alike_everywhere_and_samples_that_are_added_move_none(known):
    def positions(size: int, **options: Any) -> dict[str, list[int]]:
        facts = {"targets": targets(size)} if known else {}
        return module(Samples(size=size, **facts), class_names=NAMES, **options).positions

    cut, grown = positions(300), positions(330)
    assert sorted(position for part in cut.values() for position in part) == [*range(300)]
    assert all(20 <= len(cut[split]) <= 40 for split in ("val", "test"))
    assert cut == positions(300) != positions(300, split_seed=1)
    assert all({*cut[split]} <= {*grown[split]} for split in SPLITS)
    whole = positions(30, val=Samples(size=7), test=lambda: Samples(size=9))
    assert {split: len(part) for split, part in whole.items()} == {"train": 30, "val": 7, "test": 9}


@cases(
    "dataset names",
    (Samples(classes=["x", "y", "z"]), ["x", "y", "z"]),
    (Samples(classes=[("tench", "Tinca tinca"), "y", "z"]), ["tench, Tinca tinca", "y", "z"]),
    (Samples(labels=np.arange(30) % 3), ["0", "1", "2"]),
    (Samples(_labels=targets(30)), ["0", "1", "2"]),
    (Subset[Any](Samples(size=60, targets=targets(60)), range(30)), ["0", "1", "2"]),  # type: ignore[arg-type]
    (FakeData(30, (3, 16, 16), num_classes=4), ["0", "1", "2", "3"]),
)
def test_class_names_come_from_the_data_set_or_the_user(dataset, names):
    data = attached(module(dataset))
    assert data.class_names == names
    assert len(joined(data.val_dataloader()).labels) > 0
    others = [f"class {number}" for number in range(len(names))]
    assert module(dataset, class_names=others).class_names == others


def always(sample: Any, **facts: Any) -> Samples:
    return Samples(lambda _: sample, **facts)


@cases(
    "dataset text",
    (ChainDataset([]), "train: ChainDataset is not map-style"),
    (Samples(size=0), "train: Samples has no samples"),
    (always({"image": IMAGE}), r"must be \(image, label\), got dict"),
    (always((torch.rand(3, 8, 8), 0)), r"got torch.float32 \(3, 8, 8\); leave out ToTensor"),
    (always((np.zeros((8, 8, 3)), 0)), "got ndarray"),
    (always((torch.zeros(8, 8, 3, dtype=torch.uint8), 0)), r"height, width\), got .*\(8, 8, 3\)"),
    (always((IMAGE.convert("L").convert("F"), 0)), "32 bits"),
    (
        always((IMAGE.crop((3, 3, 3, 8)), 0)),
        r"^Samples\[\d+\]: one side is more than 1000 times the",
    ),
    (always((IMAGE, 0.0)), "'float' object cannot be interpreted as an integer"),
    (always((IMAGE, 2)), "its label must be from 0 to 1, got 2; see class_names"),
    (always((IMAGE, -1)), "its label must be from 0 to 1, got -1"),
    (TensorDataset(torch.zeros(9, 3, 8, 8).byte()), r"must be \(image, label\), got tuple"),
    (always((b"no image", 0)), r"^'Samples\[\d+\]' cannot be read as an image \(not an image: "),
)
def test_what_is_no_image_with_a_label_is_refused_before_training(dataset, text):
    with pytest.raises(UserError, match=text):
        attached(module(dataset, class_names=["a", "b"]))


def test_classes_must_be_known_and_the_same_in_all_splits():
    with pytest.raises(UserError, match=r"class_names: .* give their names"):
        _ = module(Samples()).class_names
    with pytest.raises(UserError, match=r"^val: needs the classes of train"):
        _ = module(Samples(classes=NAMES), val=Samples(classes=["a", "b", "x"])).class_names


def test_labels_that_the_data_set_transforms_are_not_taken_from_its_list():
    shifted = Samples(targets=targets(30), target_transform=lambda label: label)
    data = attached(module(shifted, class_names=NAMES))
    with pytest.raises(UserError, match="called targets"):
        _ = data.splits["train"].labels


def test_a_file_that_the_data_set_opens_is_not_shared_with_the_workers():
    class Opening(Samples):
        file = None

        def __getitem__(self, index: int) -> Any:
            self.file = self.file or object()
            return super().__getitem__(index)

    opening: Any = Opening()
    data = attached(module(Subset(opening, range(30)), class_names=NAMES))
    data.splits["train"].image(0)
    assert opening.file is None


@pytest.mark.parametrize("download", [True, False])
def test_one_process_at_a_time_downloads(tmp_path, download):
    def dataset(root: str, download: bool) -> Samples:
        with pytest.raises(Timeout) if download else nullcontext():
            FileLock(tmp_path / ".set.lock").acquire(timeout=0)
        return Samples(classes=NAMES)

    source = functools.partial(dataset, root=str(tmp_path / "set"), download=download)
    assert module(source).class_names == NAMES


def test_a_checkpoint_neither_imports_it_nor_measures_on_something_else_and_a_run_prints_what_does(
    workplace, capsys
):
    train = [*FAKE, "--data.train.size=60", "--data.train.num_classes=3"]
    test = [option.replace("train", "test") for option in train[1:]]
    fit(*train, *test, *SMALL)
    (line,) = re.findall(r"best checkpoint: (.*)", capsys.readouterr().out)
    best = str(BEST)
    assert "--data.train: the checkpoint was trained with the dataset FakeData" in one_line(
        lambda: evaluate(best), capsys
    )
    assert "--data.test: the checkpoint was trained with the dataset FakeData" in one_line(
        lambda: evaluate(best, *train), capsys
    )
    evaluate(*shlex.split(line))
    assert "may be among them" not in capsys.readouterr().err
    cut = one_line(
        lambda: evaluate(*shlex.split(line), "--split=val", "--data.split_seed=1"), capsys
    )
    assert "--split val: some of these images are those it was trained on" in cut
    assert cut.endswith("or cut these as in training, with --data.split_seed 0")
    measured = read_json("runs/run/checkpoints/best.test.metrics.json")
    assert measured["loss"] == read_json("runs/run/metrics.json")["test"]["loss"]
