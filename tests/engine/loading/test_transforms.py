"""Transforms of the user's draw by (seed, epoch, index), whoever applies them, and leave all other draws alone."""

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from project.data import FolderDataModule
from project.engine.cli.explain import explain
from project.engine.loading.transforms import TransformedDataset
from project.engine.randomness import Purpose, derived_seed, seed_generators
from tests.conftest import make_folder
from tests.data.stubs import NoiseDataModule, attached
from tests.data.test_module import by_index, epochs, require_equal
from tests.small import load, one_line, small
from tests.stress import RANDOM_TRANSFORM

OFF: dict[str, Any] = {"flip": False, "batch_size": 12, "seed": 3}


def of_python(image):
    return image if random.random() < 0.5 else image + random.randrange(1, 100)


def of_numpy(image):
    return image + np.random.randint(1, 100, dtype=np.uint8)  # noqa: NPY002


TRANSFORMS: dict[str, Any] = {
    "RandAugment": v2.RandAugment(),
    "AugMix": v2.AugMix(),
    "RandomErasing": v2.RandomErasing(p=0.8),
    "a chain": v2.Compose([v2.RandomRotation([-30, 30]), v2.RandomPosterize(4)]),
    "Python's random": of_python,
    "NumPy's random": of_numpy,
}


def batches(*transforms, epoch=0, done=0, world_size=1, rank=0, **options):
    data = NoiseDataModule(train_transforms=[*transforms], **OFF | options)
    attached(data, epoch=epoch, batches_done=done, world_size=world_size, rank=rank)
    return epochs(data, data.train_dataloader())


@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_image_is_what_the_transform_makes_of_it_after_seeding_by_hand(name):
    transform = TRANSFORMS[name]
    images, _, indices = by_index(*batches(transform, epoch=2, num_workers=0))
    train = attached(NoiseDataModule(**OFF)).splits["train"]
    changed = 0
    for image, index in zip(images, indices.tolist(), strict=True):
        seed = derived_seed(Purpose.TRANSFORMS, 3, 2, index)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        assert torch.equal(image, transform(train.image(index).clone()))
        changed += not torch.equal(image, train.image(index))
    assert changed > 20


@pytest.mark.parametrize("world_size", [2, 3])
def test_images_are_the_same_on_any_number_of_processes_and_workers_and_after_a_resume(world_size):
    several = v2.RandAugment(), of_python
    alone = batches(*several, epoch=1, num_workers=0)
    shares = [batches(*several, epoch=1, world_size=world_size, rank=rank) for rank in range(world_size)]
    for whole, *parts in zip(alone, *shares, strict=True):
        require_equal(by_index(whole), by_index(*parts))
    for whole, rest in zip(alone[2:], batches(*several, epoch=1, done=2, num_workers=2), strict=True):
        require_equal(whole, rest)


def test_epochs_and_seeds_draw_anew():
    found = [by_index(*batches(v2.RandAugment(), epoch=epoch, seed=seed)) for epoch, seed in ((0, 3), (1, 3), (0, 4))]
    seen = [dict(zip(batch.indices.tolist(), batch.images, strict=True)) for batch in found]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        common = seen[first].keys() & seen[second].keys()
        assert sum(torch.equal(seen[first][index], seen[second][index]) for index in common) < len(common) / 4


def test_all_other_draws_are_left_as_they_are():
    def draw():
        return torch.rand(3).tolist(), random.random(), np.random.random(2).tolist()  # noqa: NPY002

    train = attached(NoiseDataModule(**OFF)).splits["train"]
    dataset = TransformedDataset(train, [v2.RandAugment(), of_python, of_numpy], 0)
    seed_generators(1)
    expected = draw()
    seed_generators(1)
    dataset.__getitems__([0, 1, 2])
    assert draw() == expected


@pytest.mark.parametrize("cache", [False, True])
def test_files_are_transformed_after_they_are_cropped(tmp_path, cache):
    root = make_folder(tmp_path / "images", {"a": 12, "b": 12})
    found = []
    for transforms in ([v2.RandAugment()], [v2.RandAugment()], None):
        options = {"image_size": 24, "batch_size": 8, "flip": False, "train_transforms": transforms, "num_workers": 0}
        data = attached(FolderDataModule(str(root), cache=str(tmp_path / "cache") if cache else None, **options))
        found.append(by_index(*epochs(data, data.train_dataloader())))
    first, again, plain = found
    require_equal(first, again)
    for index, image in zip(plain.indices.tolist(), plain.images, strict=True):
        torch.manual_seed(derived_seed(Purpose.TRANSFORMS, 0, 0, index))
        assert torch.equal(first.images[first.indices == index][0], v2.RandAugment()(image))


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (
            v2.ToDtype(torch.float32, scale=True),
            "must return an image, uint8 .* got torch.float32 .* normalises on the device",
        ),
        (v2.ToPILImage(), "must return an image, uint8 .* got Image"),
        (v2.Grayscale(), r"must return an image, uint8 .* got torch.uint8 \(1, 12, 12\)"),
        (v2.RandomResize(8, 12), "return images of different sizes"),
        (v2.Resize(2), "crop_padding must be below 2"),
        (lambda image: None, "<lambda>> must return an image, uint8 .* got NoneType"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_image_is_refused_in_one_line_that_names_the_transform(transform, text, capsys):
    found = one_line(lambda: batches(transform, crop_padding=3, num_workers=0), capsys)
    assert len(found) < 300
    assert re.search(text, found)


def broken(image):
    raise ValueError("a bug of one's own")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_inside_a_transform_is_a_bug_with_its_traceback_and_no_broken_image(tmp_path, num_workers):
    root = make_folder(tmp_path / "images", {"a": 12, "b": 12})
    options = {"image_size": 16, "batch_size": 4, "num_workers": num_workers, "on_bad_image": "skip"}
    data = attached(FolderDataModule(str(root), train_transforms=[broken], **options))
    with pytest.raises(ValueError, match="a bug of one's own") as caught:
        list(data.train_dataloader())
    assert explain(caught.value) is None


def test_a_checkpoint_names_the_transforms(workplace):
    own = "--data.train_transforms+=tests.engine.loading.test_transforms.of_numpy"
    small(RANDOM_TRANSFORM, "--data.train_transforms.magnitude=5", own, "--trainer.max_epochs=1")
    about = load(workplace / "runs" / "run" / "checkpoints" / "last.ckpt")["about"]
    assert about["transforms"]["train_transforms"] == [
        "RandAugment(interpolation=nearest, num_ops=2, magnitude=5, num_magnitude_bins=31)",
        "<function of_numpy>",
    ]
