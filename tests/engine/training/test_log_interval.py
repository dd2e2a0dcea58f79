"""Training is logged once an epoch at least."""

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from project.engine.run.loggers import is_logged
from project.engine.training.lightning_fixes import LogInterval
from tests.model.test_classifier import Memory, linear, trainer


class Logged(Callback):
    """The epochs in which Lightning logs training, and how often."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if is_logged(trainer):
            self.seen.append(trainer.current_epoch)


@pytest.mark.parametrize(
    ("every", "scheduling", "epochs"),
    [
        (100, {0: 1}, [0, 1, 2]),
        (100, {0: 1, 1: 2}, [0, 1, 2]),
        (100, {0: 4, 2: 1}, [0, 1, 2]),
        (0, {0: 1, 1: 2}, []),
    ],
)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore:.*smaller than the logging interval")
def test_every_epoch_is_logged_however_many_steps_it_has(every, scheduling, epochs):
    logged = Logged()
    run = trainer(
        max_epochs=3,
        limit_val_batches=0,
        log_every_n_steps=every,
        callbacks=[LogInterval(), GradientAccumulationScheduler(scheduling), logged],
    )
    run.fit(linear(lr_scheduler_interval="epoch"), datamodule=Memory())
    assert sorted(set(logged.seen)) == epochs
