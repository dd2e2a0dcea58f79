"""Transforms of images draw by (seed, epoch, index), of batches by (seed, epoch, batch)."""

import functools
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightkeeper.cli._entry import describe_error
from lightkeeper.exact import UserError
from lightkeeper.exact._errors import LocalError
from lightkeeper.exact._randomness import Purpose, derived_seed, held_generators
from torchvision.transforms import v2

from tests.image_files import write_folder
from tests.stubs import (
    Files,
    attached,
    by_index,
    cases,
    epoch_of,
)
from tests.toy import ToyData


def of_python(image):
    return image if random.random() < 0.5 else image + random.randrange(1, 100)


def of_numpy(image):
    return image + np.random.randint(1, 100, dtype=np.uint8)  # noqa: NPY002


class Seedable:
    """Draws as albumentations does, from generators that ``set_random_seed`` replaces."""

    def __init__(self):
        self.set_random_seed(None)

    def set_random_seed(self, seed):
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)

    def __call__(self, image):
        largest = 1 + self.py_random.randrange(50)
        noise = self.random_generator.integers(0, largest, image.shape, np.uint8)
        return image + torch.from_numpy(noise)


class Holding:
    """Draws from what is in its attributes, as a person's own transform does."""

    def __init__(self, **parts):
        self.parts = parts

    def __call__(self, image):
        return functools.reduce(lambda image, part: drawn(part, image), self.parts.values(), image)


NOISE: dict[type, Callable[..., Any]] = {
    random.Random: lambda part, _: part.randrange(100),
    np.random.Generator: lambda part, _: part.integers(0, 100, dtype=np.uint8),
    np.random.RandomState: lambda part, _: part.randint(0, 100, dtype=np.uint8),
    torch.Generator: lambda part, image: torch.randint(
        100, image.shape, generator=part, dtype=torch.uint8
    ),
}


def drawn(part, image):
    """Noise of a generator, or of what has one."""
    noise = next((NOISE[kind] for kind in NOISE if isinstance(part, kind)), None)
    return part(image) if noise is None else image + noise(part, image)


def closed_over():
    generator = np.random.default_rng()
    return lambda image: drawn(generator, image)


MODULES_OWN = np.random.Generator(np.random.Philox())


def of_module(image):
    return drawn(MODULES_OWN, image)


class OfModule:
    def __call__(self, image):
        return image + MODULES_OWN.integers(0, 100, dtype=np.uint8)


HOLDERS = {
    "set_random_seed": Seedable,
    "set_random_seed, within": lambda: Holding(pipelines=v2.Compose([Seedable(), Seedable()])),
    "Python's": lambda: Holding(rng=random.Random()),
    "NumPy's": lambda: Holding(rng=np.random.default_rng()),
    "NumPy's, of old": lambda: Holding(rng=np.random.RandomState()),
    "torch's": lambda: Holding(rng=torch.Generator()),
    "several": lambda: Holding(one=random.Random(), other=Holding(rng=random.Random())),
    "a partial": lambda: functools.partial(drawn, random.Random()),
    "a method": lambda: Holding(rng=random.Random()).__call__,
    "a closure": closed_over,
    "a module's": lambda: of_module,
    "a module's, in a class": OfModule,
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_generators_that_a_transform_holds_are_functions_of_seed_epoch_and_index(make, num_workers):
    """So that a run that resumes within an epoch, and any workers, draw as others do."""
    whole = by_index(batches(train_transforms=[make()], num_workers=0, done=0))
    rest = by_index(batches(train_transforms=[make()], num_workers=num_workers, done=2))
    other = by_index(batches(train_transforms=[make()], num_workers=0, done=2, epoch=3))
    places = torch.isin(whole[2], rest[2])
    assert 0 < len(rest[2]) < len(whole[2])
    assert torch.equal(whole[0][places], rest[0])
    noise = rest[0] - attached_data().splits["train"].images[rest[2]]
    assert len(noise.flatten(1).unique(dim=0)) > len(noise) / 2  # no two images get the same
    common = torch.isin(rest[2], other[2])
    assert not torch.equal(rest[0][common], other[0][torch.isin(other[2], rest[2])])


def test_generators_of_two_transforms_draw_differently():
    draws: list[int] = []

    def recording():
        generator = random.Random()

        def transform(image):
            draws.append(generator.randrange(10**9))
            return image

        return transform

    batches(train_transforms=[recording(), recording()], num_workers=0)
    assert len({*draws}) == len(draws) > 0


def test_a_generator_that_cannot_be_seeded_is_named(capsys):
    batches(train_transforms=[Holding(rng=random.SystemRandom())], num_workers=0)
    said = "holds a SystemRandom, which cannot be seeded; a run will not resume exactly"
    assert capsys.readouterr().err.count(said) == 1


def test_a_generator_that_cannot_be_seeded_changes_no_other_on_any_rank(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        held = held_generators([random.SystemRandom(), own := random.Random()])
        assert held == [own]


def attached_data(epoch=2, done=1, world_size=1, rank=0, **options):
    data = ToyData(batch_size=12, seed=3, **options)
    return attached(data, epoch=epoch, batches_done=done, world_size=world_size, rank=rank)


def batches(**options):
    return epoch_of(attached_data(**options))


@cases(
    "transform position",
    (v2.RandAugment(), {"num_workers": 2}),
    (
        v2.Compose([v2.RandomRotation([-30, 30]), v2.RandomPosterize(4)]),
        {"world_size": 3, "rank": 1},
    ),
    (of_python, {"world_size": 2, "rank": 1}),
    (of_numpy, {"done": 0}),
)
def test_each_image_is_what_the_transform_makes_of_it_after_seeding_by_hand(transform, position):
    """In a worker, on one of several processes and after a resume as well."""
    images, _, indices = by_index(
        batches(train_transforms=[transform], **{"num_workers": 0} | position)
    )
    train = attached_data().splits["train"]
    changed = 0
    for image, index in zip(images, indices.tolist(), strict=True):
        seed = derived_seed(Purpose.TRANSFORMS, 3, 2, index)
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        assert torch.equal(image, transform(train.image(index).clone()))
        changed += not torch.equal(image, train.image(index))
    assert changed > len(images) / 3


@cases(
    "options kind text",
    (
        {"train_transforms": [v2.ToDtype(torch.float32, scale=True)]},
        LocalError,
        "train_transforms: .*got torch.float32 with 3.* normalises on the device",
    ),
    (
        {"train_transforms": [v2.Grayscale()]},
        LocalError,
        "train_transforms: .*must return torch.uint8 with 3 channels, got torch.uint8 with 1 channels",
    ),
    (
        {"train_transforms": [v2.RandomCrop(99)]},
        UserError,
        "train_transforms: RandomCrop: Required cr",
    ),
    (
        {"batch_transforms": [v2.MixUp(num_classes=9)]},
        UserError,
        "batch_transforms: MixUp: When pass",
    ),
)
def test_images_of_another_type_and_those_that_a_library_refuses_are_one_line(options, kind, text):
    with pytest.raises(kind) as caught:
        batches(num_workers=0, **options)
    assert re.match(text, str(describe_error(caught.value)))


def buggy(image):
    raise ValueError("a bug of one's own")


def broken(image):
    raise RuntimeError("a bug of one's own")


# torch waits ten seconds for a worker whose iterator the collector finds
@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_error_inside_a_transform_is_a_bug_with_its_traceback_and_no_broken_image(
    tmp_path, num_workers
):
    options = {"num_workers": num_workers, "on_bad_image": "skip", "train_transforms": [broken]}
    data = attached(Files(str(write_folder(tmp_path, {"a": 12, "b": 12})), **options))
    with pytest.raises(RuntimeError, match="a bug of one's own") as caught:
        list(data.train_dataloader())
    assert describe_error(caught.value) is None


class Mine(v2.RandomCrop):
    """A transform of one's own."""


@cases("transform", Mine(99), buggy, v2.Compose([buggy]), v2.RandomApply([v2.Lambda(buggy)], p=1))
def test_a_transform_of_ones_own_that_fails_is_a_bug_also_within_one_of_a_library(transform):
    with pytest.raises(ValueError, match=r"Required crop size|a bug") as caught:
        batches(num_workers=0, train_transforms=[transform])
    assert describe_error(caught.value) is None


def first_batch(*transforms, **options):
    return batches(batch_transforms=[*transforms], **options)[0]


@cases("transform tolerance done", (v2.MixUp, 0.5, 1), (v2.CutMix, 0.0, 2))
def test_a_batch_is_what_torchvision_makes_of_it_in_float64(transform, tolerance, done):
    plain, mixed = first_batch(done=done), first_batch(transform(alpha=0.8), done=done)
    torch.manual_seed(derived_seed(Purpose.BATCH_TRANSFORMS, 3, 2, done))
    images, labels = transform(alpha=0.8, num_classes=3)(plain.images.double(), plain.labels)
    assert mixed.images.dtype == torch.uint8
    assert (mixed.images.double() - images).abs().max() <= tolerance + 1e-4
    assert torch.allclose(mixed.labels, labels)
    assert not torch.equal(mixed.images, plain.images)
    assert torch.equal(mixed.indices, plain.indices)


def test_generators_that_a_batch_transform_holds_are_functions_of_seed_epoch_and_batch():
    def scaling():
        generator = random.Random()
        return lambda images, labels: (images * 0 + generator.randrange(256), labels)

    first, again, other = (
        int(first_batch(scaling(), done=done).images.unique()) for done in (1, 1, 2)
    )
    assert first == again != other


def test_batches_are_mixed_alike_on_all_devices():
    labels = [first_batch(v2.MixUp(), world_size=2, rank=rank).labels for rank in range(2)]
    shares = {round(float(share), 6) for share in torch.cat(labels).flatten()}
    assert len(shares - {0.0, 1.0}) == 2  # the same two on all devices
