"""Transforms of images draw by (seed, epoch, index), of batches by (seed, epoch, batch), and leave all other draws alone."""

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms import v2

from project.data import FolderDataModule
from project.engine.cli.explain import explain
from project.engine.loading.transforms import TransformedDataset
from project.engine.randomness import Purpose, derived_seed, seed_generators
from project.model import ImageClassifier
from project.model.losses import CrossEntropy
from tests.conftest import cases, make_folder
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


@cases(
    "transform text",
    (
        v2.ToDtype(torch.float32, scale=True),
        "must return an image, uint8 .* got torch.float32 .* normalises on the device",
    ),
    (v2.ToPILImage(), "must return an image, uint8 .* got Image"),
    (v2.Grayscale(), r"must return an image, uint8 .* got torch.uint8 \(1, 12, 12\)"),
    (v2.RandomResize(8, 12), "return images of different sizes"),
    (v2.Resize(2), "crop_padding must be below 2"),
    (lambda image: None, "<lambda>> must return an image, uint8 .* got NoneType"),
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
    augment = "RandAugment(interpolation=nearest, num_ops=2, magnitude=5, num_magnitude_bins=31)"
    assert about["transforms"]["train_transforms"] == [augment, "<function of_numpy>"]


CLASSES = 3


def first_batch(*transforms, done=1, **options):
    data = NoiseDataModule(batch_transforms=[*transforms], **OFF | options)
    attached(data, epoch=2, batches_done=done)
    return epochs(data, data.train_dataloader())[0]


@pytest.mark.parametrize(("transform", "tolerance"), [(v2.MixUp, 0.5), (v2.CutMix, 0.0)])
def test_a_batch_is_what_torchvision_makes_of_it_in_float64(transform, tolerance):
    plain, mixed = first_batch(), first_batch(transform(alpha=0.8))
    torch.manual_seed(derived_seed(Purpose.BATCH_TRANSFORMS, 3, 2, 1))
    images, labels = transform(alpha=0.8, num_classes=CLASSES)(plain.images.double(), plain.labels)
    assert mixed.images.dtype == torch.uint8
    assert (mixed.images.double() - images).abs().max() <= tolerance + 1e-4
    assert torch.allclose(mixed.labels, labels)
    assert not torch.equal(mixed.images, plain.images)
    assert torch.equal(mixed.indices, plain.indices)


def test_draws_depend_on_the_batch_and_leave_others_alone():
    torch.manual_seed(5)
    first_batch()  # a loader draws one number
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = first_batch(v2.MixUp())
    assert torch.equal(torch.rand(3), expected)
    again, other = first_batch(v2.MixUp()), first_batch(v2.MixUp(), done=2)
    require_equal(first, again)
    assert set(map(float, first.labels.flatten())) != set(map(float, other.labels.flatten()))


def test_all_devices_draw_alike():
    shares = []
    for rank in range(2):
        data = attached(NoiseDataModule(batch_transforms=[v2.MixUp()], **OFF), world_size=2, rank=rank)
        shares.append({round(float(share), 6) for share in epochs(data, data.train_dataloader())[0].labels.flatten()})
    assert len(set.union(*shares) - {0.0, 1.0}) == 2  # the same two shares


def test_evaluation_sees_images_as_they_are():
    both: dict[str, Any] = {"batch_transforms": [v2.MixUp()], "train_transforms": [v2.RandAugment()]}
    data = attached(NoiseDataModule(**both, **OFF), training=False)
    batch = epochs(data, data.val_dataloader())[0]
    assert batch.labels.dtype == torch.int64
    assert torch.equal(batch.images, data.splits["val"].images[batch.indices])


def test_soft_labels_give_mean_cross_entropy_and_count_against_the_largest_share():
    batch = first_batch(v2.MixUp())
    data = NoiseDataModule()
    smooth = CrossEntropy(label_smoothing=0.2)
    model = ImageClassifier(data.class_names, data.preprocessing, arch="resnet9_slim", loss=smooth)
    model.eval()
    loss = model.training_step(batch, 0).detach()
    logits = model(batch.images).detach().double()
    smoothed = 0.8 * batch.labels.double() + 0.2 / CLASSES
    assert float(loss) == pytest.approx(float(-(smoothed * F.log_softmax(logits, 1)).sum(1).mean()), rel=1e-5)
    results = model.train_metrics.compute()
    assert results.accuracy == pytest.approx(float((logits.argmax(1) == batch.labels.argmax(1)).double().mean()))


def test_bfloat16_takes_soft_labels(workplace):
    mixing = "--data.batch_transforms+=torchvision.transforms.v2.MixUp", "--data.batch_transforms.alpha=0.2"
    small(*mixing, "--trainer.precision=bf16-true", "--trainer.max_steps=1")
