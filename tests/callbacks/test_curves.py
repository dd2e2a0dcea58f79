"""The learning rate is one curve, unless parameter groups differ in it."""

from functools import partial

import pytest
from torch.optim import SGD

from project.callbacks import ImagesPerSecond, LearningRate
from project.model import CosineWithWarmup
from tests.model.test_classifier import Memory, linear, loader_of, trainer


@pytest.mark.parametrize(
    ("rates", "curves"),
    [((0.1, 0.1), {"learning_rate": 0.1}), ((0.1, 0.2), {"learning_rate/pg1": 0.1, "learning_rate/pg2": 0.2})],
)
def test_groups_of_one_rate_share_a_curve(rates, curves):
    def optimizer(groups):
        return SGD([{**group, "lr": rate} for group, rate in zip(groups, rates, strict=True)])

    pairs = loader_of([tuple(batch) for batch in Memory().batches()])  # the speed is that of any loader, too
    run = trainer(max_epochs=1, limit_val_batches=0, log_every_n_steps=1, callbacks=[LearningRate(), ImagesPerSecond()])
    run.fit(linear(optimizer=optimizer, lr_scheduler=partial(CosineWithWarmup, lrf=1.0, warmup_epochs=0)), pairs, pairs)
    assert float(run.callback_metrics["train/images_per_second"]) > 0
    logged = {name: float(value) for name, value in run.callback_metrics.items() if "learning_rate" in name}
    assert logged == pytest.approx(curves)
