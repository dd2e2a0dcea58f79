"""No step waits for its device: it can be computed on one that has no data, torch's ``meta``."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from project.engine.training.non_finite import StopOnNonFinite
from project.model.metrics import ClassificationMetrics, Metrics
from tests.conftest import cases
from tests.small import small


class EnoughError(Exception):
    """The steps were taken."""


class OnMeta(Callback):
    """Moves training to the device without data, where ``item``, ``tolist``, ``cpu``, ``nonzero`` and the like are errors."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.to("meta")
        trainer.strategy._root_device, trainer._teardown = torch.device("meta"), lambda: None
        trainer.strategy.setup_optimizers(trainer)
        next(one for one in trainer.callbacks if isinstance(one, StopOnNonFinite)).on_train_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert batch.images.is_meta
        if batch_idx == 3:
            raise EnoughError


@cases(
    "flags",
    ["--trainer.enable_progress_bar=true", "--trainer.callbacks+=TQDMProgressBar"],
    ["--data.batch_transforms+=torchvision.transforms.v2.MixUp", "--trainer.accumulate_grad_batches=2"],
    ["--model.optimizer=project.model.Muon", "--trainer.gradient_clip_val=1", "--data.crop_padding=2"],
    ["--data.device_cache=true", "--trainer.precision=bf16-mixed", "--model.loss.class_weights=balanced"],
)
def test_a_step_reads_nothing_from_its_device(workplace, monkeypatch, flags):
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(manual_seed=lambda seed: None))
    monkeypatch.setattr("project.engine.training.non_finite._copied", lambda flag: lambda: False)
    logged = Metrics(1.0, torch.eye(8).long(), None)  # in the second step, which alone may wait
    monkeypatch.setattr(ClassificationMetrics, "compute", lambda _: logged)
    with pytest.raises(EnoughError):
        small("--trainer.logger=false", "--trainer.log_every_n_steps=2", *flags, callbacks=[OnMeta()])
