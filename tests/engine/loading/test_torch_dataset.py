"""Samples of a torch dataset become images and labels as files do, and what is random in them is a function of the seed."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import FakeData

from project.data import FolderDataModule
from project.engine.errors import UserError
from project.engine.loading.batch import ImageBatch
from tests.data.stubs import attached
from tests.data.test_torch_dataset import IMAGE, Samples, joined, labelled, module
from tests.engine.loading.image_files import smooth


def test_images_of_every_mode_become_what_they_become_as_files(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    deep = Image.fromarray((np.asarray(smooth(30, 24))[..., 0].astype(np.uint16) << 8) + 99)
    cases: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "grey": (smooth(30, 24).convert("L"), {}),
        "transparent": (smooth(30, 24).convert("RGBA"), {}),
        "palette": (smooth(30, 24).quantize(16), {}),
        "deep": (deep, {}),
        "turned": (smooth(30, 24), {"exif": turned}),
    }
    for name, (image, options) in cases.items():
        for label in ("a", "b"):
            (tmp_path / label).mkdir(exist_ok=True)
            for copy in range(2):
                image.save(tmp_path / label / f"{name}{copy}.png", **options)
    files = attached(FolderDataModule(str(tmp_path), image_size=16, num_workers=0, batch_size=1)).splits
    opened = [file for split in files.values() for file in split.files]
    wanted = torch.stack([split.image(index) for split in files.values() for index in range(len(split))])
    data = module(Samples([(Image.open(file), 0) for file in opened]), class_names=["a", "b"])
    batches = attached(data).splits
    found = {
        position: batches[split].image(index)
        for split, positions in data.positions().items()
        for index, position in enumerate(positions)
    }
    assert torch.equal(torch.stack([found[position] for position in range(len(opened))]), wanted)


def test_what_is_random_in_a_data_set_depends_on_seed_epoch_and_index_alone():
    def draw(index: int) -> tuple[torch.Tensor, int]:
        numbers = torch.rand(2).tolist() + np.random.rand(2).tolist() + [random.random()]  # noqa: NPY002
        pixels = torch.tensor([int(256 * number) for number in numbers], dtype=torch.uint8)
        return pixels.view(1, 1, 5).expand(3, 5, 5), index % 2

    def epoch(workers: int, epoch: int = 1, seed: int = 0, done: int = 0) -> ImageBatch:
        data = module(Samples(draw, 40), class_names=["a", "b"], num_workers=workers, crop_scale=(1.0, 1.0), seed=seed)
        return joined(attached(data, epoch=epoch, batches_done=done).train_dataloader())

    alone = epoch(0)
    torch.manual_seed(99)
    assert all(torch.equal(*fields) for fields in zip(epoch(2), alone, strict=True))
    assert all(torch.equal(found, field[12:]) for found, field in zip(epoch(0, done=3), alone, strict=True))
    assert len({image.numpy().tobytes() for image in alone.images}) == len(alone.images)
    for other in (epoch(0, epoch=2), epoch(0, seed=1)):
        images = dict(zip(other.indices.tolist(), other.images, strict=True))
        both = [
            (image, images[i]) for i, image in zip(alone.indices.tolist(), alone.images, strict=True) if i in images
        ]
        assert both
        assert not any(torch.equal(*pair) for pair in both)


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (labelled(30, classes=["x", "y", "z"]), ["x", "y", "z"]),
        (labelled(30, classes=[("tench", "Tinca tinca"), ("crane",), "z"]), ["tench, Tinca tinca", "crane", "z"]),
        (labelled(30, labels=np.arange(30) % 3), ["0", "1", "2"]),
        (labelled(30, _labels=[i % 3 for i in range(30)]), ["0", "1", "2"]),
        (Subset(labelled(60, classes=["x", "y", "z"]), range(30)), ["x", "y", "z"]),
        (FakeData(30, (3, 16, 16), num_classes=4), ["0", "1", "2", "3"]),
    ],
)
def test_class_names_come_from_the_data_set(dataset, names):
    data = attached(module(dataset))
    assert data.class_names == names
    assert len(joined(data.val_dataloader()).labels) > 0
    given = [f"class {number}" for number in range(len(names))]
    assert module(dataset, class_names=given).class_names == given


def test_labels_that_the_data_set_transforms_are_not_taken_from_its_list():
    shifted = labelled(30, targets=[(i + 1) % 3 for i in range(30)], target_transform=lambda label: label)
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
