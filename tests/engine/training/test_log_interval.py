"""Training is logged once an epoch at least."""

import pytest
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LambdaCallback

from project.engine.run.loggers import is_logged
from project.engine.training.lightning_fixes import LogInterval
from tests.model.test_classifier import Memory, linear, trainer


@pytest.mark.parametrize(
    ("every", "scheduling"), [(100, {0: 1}), (100, {0: 1, 1: 2}), (100, {0: 4, 2: 1}), (0, {0: 1, 1: 2})]
)
def test_every_epoch_is_logged_however_many_steps_it_has(every, scheduling):
    logged = set()
    witness = LambdaCallback(
        on_train_batch_end=lambda trainer, *_: logged.add(trainer.current_epoch) if is_logged(trainer) else None
    )
    callbacks = [LogInterval(), GradientAccumulationScheduler(scheduling), witness]
    run = trainer(max_epochs=3, limit_val_batches=0, log_every_n_steps=every, callbacks=callbacks)
    run.fit(linear(lr_scheduler_interval="epoch"), datamodule=Memory())
    assert logged == ({0, 1, 2} if every else set())
