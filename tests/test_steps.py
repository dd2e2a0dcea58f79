"""A step of yours reads nothing from its device, and schedules look at metrics that are there."""

from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback

from tests.conftest import (
    ONE_CPU,
    QUIET,
    RUN,
    SLIM,
    TINY_DATA,
    SmallNetwork,
    cases,
    fit,
    one_line,
    small,
)


class OnMeta(Callback):
    """Moves training to the device without data, where ``item``, ``tolist``, ``cpu``, ``nonzero`` and the like are errors."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.to("meta")
        trainer.strategy._root_device, trainer._teardown = torch.device("meta"), lambda: None
        trainer.strategy.setup_optimizers(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        assert batch.images.is_meta
        if batch_idx == 3:
            raise EOFError("the steps were taken")


@cases(
    "flags",
    ["--trainer.enable_progress_bar=true", "--trainer.callbacks+=TQDMProgressBar"],
    [
        "--data.batch_transforms+=torchvision.transforms.v2.MixUp",
        "--trainer.accumulate_grad_batches=2",
    ],
    [
        "--model.optimizer=examples.recipes.muon.Muon",
        "--trainer.gradient_clip_val=1",
        "--data.crop_padding=2",
    ],
    [
        "--data.device_cache=true",
        "--trainer.precision=bf16-mixed",
        "--model.loss.class_weights=balanced",
    ],
)
def test_a_step_reads_nothing_from_its_device(workplace, monkeypatch, flags):
    monkeypatch.setattr(
        torch, "get_device_module", lambda _: SimpleNamespace(manual_seed=lambda seed: None)
    )
    # the last step of an epoch, which alone is logged, may wait
    quiet = ["--trainer.logger=false", "--trainer.log_every_n_steps=50"]
    with pytest.raises(EOFError, match="the steps were taken"):
        small(*quiet, *flags, callbacks=[OnMeta()])


class Float32(SmallNetwork):
    """Remembers in training and evaluation whether a GPU may round to TF32."""

    rounding: ClassVar[set[tuple[bool, bool]]] = set()

    def forward(self, x):
        self.rounding.add((self.training, torch.backends.cudnn.allow_tf32))
        return super().forward(x)


def test_tf32_is_off_in_exact_evaluation_alone(workplace):
    fresh = LambdaCallback(on_train_start=lambda *_: Float32.rounding.clear())
    small("--trainer.max_steps=1", network=Float32, callbacks=[fresh])
    assert Float32.rounding == {(True, True), (False, False)}


PLATEAU = [
    "--model.lr_scheduler=ReduceLROnPlateau",
    "--model.lr_scheduler.patience=0",
    "--model.lr_scheduler.threshold=1e9",  # nothing is an improvement but the first
    "--trainer.max_epochs=4",
]


@cases(
    "flags monitor looks",  # how often it looked at the metric, in four epochs of four steps
    ("", "val/loss", 4),
    ("--trainer.check_val_every_n_epoch=2", "val/loss", 2),
    ("--model.lr_scheduler_interval=step", "val/loss", 4),
    ("--model.lr_scheduler_interval=step --trainer.val_check_interval=2", "val/loss", 8),
    ("--model.lr_scheduler_interval=step --trainer.log_every_n_steps=1", "train/loss", 16),
    ("--trainer.check_val_every_n_epoch=2", "train/loss", 4),
    ("--trainer.check_val_every_n_epoch=null --trainer.val_check_interval=3", "val/loss", 4),
    ("--trainer.check_val_every_n_epoch=null --trainer.val_check_interval=9", "val/loss", 0),
    ("--trainer.check_val_every_n_epoch=2 --model.lr_scheduler_interval=step", "val/loss", 0),
    ("--trainer.val_check_interval=00:01:00:00", "val/loss", 0),
    ("--model.lr_scheduler_interval=step --trainer.log_every_n_steps=3", "train/loss", 0),
    ("--trainer.log_every_n_steps=0", "train/loss", 0),
)
def test_a_schedule_looks_at_a_metric_when_it_was_measured_or_is_refused_before_the_first_step(
    workplace, capsys, flags, monitor, looks
):
    options = [*PLATEAU, f"--model.lr_scheduler.monitor={monitor}", *flags.split()]
    if looks:
        (config,) = small(*options).trainer.lr_scheduler_configs
        assert config.scheduler.last_epoch == looks
    else:
        said = one_line(lambda: small(*options), capsys)
        assert said.startswith(f"error: ReduceLROnPlateau watches {monitor}, which is not measured")
        assert not [*RUN.rglob("*.ckpt")]


def test_where_a_time_alone_ends_training_the_default_schedule_needs_no_length(
    workplace, monkeypatch, capsys
):
    clock = SimpleNamespace(monotonic=count().__next__)  # a second passes whenever it is read
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time", clock)
    timed = [*TINY_DATA, *ONE_CPU, *QUIET, *SLIM, "--trainer.max_time=00:00:00:07"]
    cli = fit(*timed, "--name=run", "--model.optimizer.lr=0.02")
    assert cli.trainer.optimizers[0].param_groups[0]["lr"] == 0.02
    assert capsys.readouterr().err.count("the learning rate is constant") == 1
    again = fit("--config=runs/run/config.yaml", "--name=again")
    assert again.trainer.global_step == cli.trainer.global_step > 0
    assert "the learning rate is constant" not in capsys.readouterr().err
    for chosen in ("--model.lr_scheduler=CosineWithWarmup", "--model.lr_scheduler.lrf=0"):
        said = one_line(lambda: fit(*timed, chosen), capsys)  # noqa: B023  # called at once
        assert "must know where training ends" in said
