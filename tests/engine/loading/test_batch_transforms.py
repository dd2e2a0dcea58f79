"""Transforms of whole batches draw by (seed, epoch, batch), blend as torchvision does, and leave all other draws alone."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms import v2

from project.engine.randomness import Purpose, derived_seed
from project.model import ImageClassifier
from project.model.losses import CrossEntropy
from tests.data.stubs import NoiseDataModule, attached
from tests.data.test_module import epochs, require_equal
from tests.small import small

OFF: dict[str, Any] = {"flip": False, "batch_size": 12, "seed": 3}
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
    model = ImageClassifier(
        data.class_names, data.preprocessing, arch="resnet9_slim", loss=CrossEntropy(label_smoothing=0.2)
    )
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
