"""The base of classifiers by a plain trainer, with metrics of torchmetrics' own and a toy network."""

import pytest
import torch

from project.engine import UserError
from project.engine.training.module import _counts, _restore_counts
from tests.engine.toy import ToyData, toy, toy_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec")


def test_a_plain_trainer_trains_logs_and_measures_each_image_once():
    model, trainer = toy(), toy_trainer(max_epochs=20, num_sanity_val_steps=0)
    trainer.fit(model, datamodule=ToyData())
    assert {"train/loss", "val/loss", "val/accuracy"} <= trainer.callback_metrics.keys()
    trainer.test(model, datamodule=ToyData(size=25), verbose=False)
    images = ToyData(size=25).load()["test"]
    with torch.no_grad():
        right = model(images.images).argmax(1) == images.labels
    assert model.results["test"]["accuracy"] == pytest.approx(float(right.float().mean()))
    assert model.results["test"]["accuracy"] > 0.9


def test_open_counts_of_training_are_restored_except_those_of_another_shape():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 3, generator=generator), torch.arange(40) % 3
    losses = torch.rand(40, generator=generator)
    parts = [(logits[at], labels[at], losses[at]) for at in (slice(25), slice(25, 40))]
    whole, before, after = toy(), toy(), toy()
    for part in parts:
        whole.measure("train", *part)
    before.measure("train", *parts[0])
    for name, metric in after.train_metrics.items():
        _restore_counts(metric, {"tp": torch.ones(9)})  # of an older run
        _restore_counts(metric, _counts(before.train_metrics[name]))
    after.measure("train", *parts[1])
    assert after.conclude("train") == pytest.approx(whole.conclude("train"))


def test_a_loss_that_is_a_mean_is_refused():
    with pytest.raises(UserError, match=r"must return each image's loss, of shape \(4,\)"):
        toy().measure("val", torch.zeros(4, 3), torch.zeros(4).long(), torch.tensor(0.5))
