"""The learning rate is one curve, unless parameter groups differ in it."""

import pytest
from torch.optim import SGD

from project.callbacks import LearningRate
from tests.model.test_classifier import CONSTANT, Memory, linear, trainer


@pytest.mark.parametrize(
    ("rates", "curves"),
    [((0.1, 0.1), {"learning_rate": 0.1}), ((0.1, 0.2), {"learning_rate/pg1": 0.1, "learning_rate/pg2": 0.2})],
)
def test_groups_of_one_rate_share_a_curve(rates, curves):
    def optimizer(groups):
        return SGD([{**group, "lr": rate} for group, rate in zip(groups, rates, strict=True)])

    run = trainer(max_epochs=1, limit_val_batches=0, log_every_n_steps=1, callbacks=[LearningRate()])
    run.fit(linear(optimizer=optimizer, lr_scheduler=CONSTANT), datamodule=Memory())
    logged = {name: float(value) for name, value in run.callback_metrics.items() if "learning_rate" in name}
    assert logged == pytest.approx(curves)
