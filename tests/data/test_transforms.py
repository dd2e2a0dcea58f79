"""A user's transforms in a run: what its checkpoint says of them, and what the model makes of soft labels."""

import pytest
import torch
from torch.nn import functional as F
from torchvision.transforms import v2

from project.model import ImageClassifier
from project.model.losses import CrossEntropy
from tests.data.stubs import NoiseDataModule, attached
from tests.small import load, small
from tests.stress import RANDOM_TRANSFORM


def test_a_checkpoint_names_the_transforms_and_bfloat16_takes_soft_labels(workplace):
    own = "--data.train_transforms+=tests.engine.loading.test_transforms.of_numpy"
    mixing = (
        "--data.batch_transforms+=torchvision.transforms.v2.MixUp",
        "--data.batch_transforms.alpha=0.2",
    )
    flags = "--trainer.precision=bf16-true", "--trainer.max_steps=1"
    small(RANDOM_TRANSFORM, "--data.train_transforms.magnitude=5", own, *mixing, *flags)
    about = load(workplace / "runs" / "run" / "checkpoints" / "last.ckpt")["about"]
    augment = "RandAugment(interpolation=nearest, num_ops=2, magnitude=5, num_magnitude_bins=31)"
    assert about["transforms"]["train_transforms"] == [augment, "<function of_numpy>"]


def test_soft_labels_give_mean_cross_entropy_and_count_against_the_largest_share():
    data = attached(NoiseDataModule(batch_size=12, batch_transforms=[v2.MixUp()]))
    batch = data.on_after_batch_transfer(next(iter(data.train_dataloader())), 0)
    smooth = CrossEntropy(label_smoothing=0.2)
    model = ImageClassifier(
        data.class_names, data.preprocessing, arch="resnet9_slim", loss=smooth
    ).eval()
    loss, logits = model.training_step(batch, 0).detach(), model(batch.images).detach()
    torch.testing.assert_close(loss, F.cross_entropy(logits, batch.labels, label_smoothing=0.2))
    right = (logits.argmax(1) == batch.labels.argmax(1)).float().mean()
    assert model.train_metrics.compute()["accuracy"] == pytest.approx(float(right))
