"""Samples of a torch dataset become images and labels as files do, and what is random in them is a function of the seed."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import FakeData

from project.engine.errors import UserError
from project.engine.loading.batch import ImageBatch
from project.engine.loading.files import prepare
from tests.conftest import cases
from tests.data.stubs import attached
from tests.data.test_torch_dataset import IMAGE, Samples, joined, labelled, module
from tests.engine.loading.image_files import save, smooth, turned

GREY = smooth(30, 24).convert("L")


@pytest.mark.parametrize("suffix", ["png", "tif"])
@cases(
    "image options",
    (GREY, {}),
    (smooth(30, 24).convert("RGBA"), {}),
    (smooth(30, 24).quantize(16), {}),
    (Image.fromarray((np.asarray(GREY).astype(np.uint16) << 8) + 99), {}),
    (smooth(30, 24), {"exif": turned(6)}),
)
def test_an_image_of_any_mode_becomes_what_it_becomes_as_a_file(tmp_path, image, options, suffix):
    path = save(image, tmp_path / f"image.{suffix}", **options)
    dataset = attached(
        module(Samples([(Image.open(path), 0)] * 30), class_names=["a", "b"])
    ).splits["train"]
    assert torch.equal(dataset.image(0), prepare(path, dataset.preprocessing))


class Fetching(Samples):
    """Samples that are fetched together."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.fetched = [*getattr(self, "fetched", []), indices]
        return [self[index] for index in indices]


@pytest.mark.parametrize("kind", [Samples, Fetching])
def test_what_is_random_in_a_data_set_depends_on_seed_epoch_and_index_alone(kind):
    def draw(index: int) -> tuple[torch.Tensor, int]:
        numbers = torch.rand(2).tolist() + np.random.rand(2).tolist() + [random.random()]  # noqa: NPY002
        pixels = torch.tensor([int(256 * number) for number in numbers], dtype=torch.uint8)
        return pixels.view(1, 1, 5).expand(3, 5, 5), index % 2

    def epoch(workers: int, epoch: int = 1, seed: int = 0, done: int = 0) -> ImageBatch:
        data = module(
            kind(draw, 40),
            class_names=["a", "b"],
            num_workers=workers,
            crop_scale=(1.0, 1.0),
            seed=seed,
        )
        return joined(attached(data, epoch=epoch, batches_done=done).train_dataloader())

    alone = epoch(0)
    torch.manual_seed(99)
    assert all(torch.equal(*fields) for fields in zip(epoch(2), alone, strict=True))
    assert all(
        torch.equal(found, field[12:]) for found, field in zip(epoch(0, done=3), alone, strict=True)
    )
    drawn = {image.numpy().tobytes() for image in alone.images}
    assert len(drawn) == len(alone.images)
    for other in (epoch(0, epoch=2), epoch(0, seed=1)):
        assert set(other.indices.tolist()) & set(alone.indices.tolist())
        assert not {image.numpy().tobytes() for image in other.images} & drawn


@cases(
    "dataset names",
    (labelled(30, classes=["x", "y", "z"]), ["x", "y", "z"]),
    (
        labelled(30, classes=[("tench", "Tinca tinca"), ("crane",), "z"]),
        ["tench, Tinca tinca", "crane", "z"],
    ),
    (labelled(30, labels=np.arange(30) % 3), ["0", "1", "2"]),
    (labelled(30, _labels=[i % 3 for i in range(30)]), ["0", "1", "2"]),
    (Subset(labelled(60, classes=["x", "y", "z"]), range(30)), ["x", "y", "z"]),
    (FakeData(30, (3, 16, 16), num_classes=4), ["0", "1", "2", "3"]),
)
def test_class_names_come_from_the_data_set(dataset, names):
    data = attached(module(dataset))
    assert data.class_names == names
    assert len(joined(data.val_dataloader()).labels) > 0
    given = [f"class {number}" for number in range(len(names))]
    assert module(dataset, class_names=given).class_names == given


def test_labels_that_the_data_set_transforms_are_not_taken_from_its_list():
    shifted = labelled(
        30, targets=[(i + 1) % 3 for i in range(30)], target_transform=lambda label: label
    )
    data = attached(module(shifted, class_names=["a", "b", "c"]))
    with pytest.raises(UserError, match="called targets"):
        _ = data.splits["train"].labels


def test_a_file_that_the_data_set_opens_is_not_shared_with_the_workers():
    class Opening(Samples):
        file = None

        def __getitem__(self, index: int) -> Any:
            self.file = self.file or object()
            return super().__getitem__(index)

    opening = Opening([(IMAGE, 0)] * 30)
    data = attached(module(Subset(opening, range(30)), class_names=["a", "b"]))
    data.splits["train"].image(0)
    assert opening.file is None


@pytest.mark.parametrize("subset", [False, True])
def test_a_data_set_that_fetches_batches_is_asked_for_each_once(subset):
    fetching = Fetching(**vars(labelled(60, targets=[i % 3 for i in range(60)])))
    given, plain = (
        Subset(one, range(40)) if subset else one for one in (fetching, Samples(**vars(fetching)))
    )
    found, expected = (joined(attached(module(one)).train_dataloader()) for one in (given, plain))
    assert all(torch.equal(*fields) for fields in zip(found, expected, strict=True))
    assert len(fetching.fetched) == len(found.labels) // 4
    assert [len(batch) for batch in fetching.fetched] == [4] * len(fetching.fetched)
