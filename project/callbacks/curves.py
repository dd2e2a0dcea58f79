"""Curves of learning rate and speed, and how long training will take."""

import math
import time
from collections.abc import Sequence, Sized
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from project.engine import ImageDataModule, note
from project.model.optimizers import LR_SCALE

_STEPS = 10
"""The steps, after the first, by which the length of training is estimated."""


class ImagesPerSecond(Callback):
    """Logs ``train/images_per_second`` of all devices, loading included, validation left out.

    Says once, after the first steps, how long training will take.
    """

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Prints the settings that decide the speed, once Lightning has chosen them."""
        data: ImageDataModule | None = trainer.datamodule  # type: ignore[attr-defined]
        if stage != "fit" or data is None or not trainer.is_global_zero:
            return
        layout = str(pl_module.memory_format).removeprefix("torch.")
        compiled = "compiled" if pl_module.compile_network else "not compiled"
        workers = "none"
        if data.workers():
            memory = "pinned" if data.pins_memory() else "not pinned"
            workers = f"{data.workers()} per device, {data.prefetch_factor} batches ahead, {memory}"
        note(
            f"{trainer.precision}, {layout}, {compiled}, threads: {torch.get_num_threads()};"
            f" loader workers: {workers}"
        )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock, also where a run resumes within an epoch."""
        self._first_step = trainer.global_step + 1
        self._began: float | None = None
        self._estimated = False
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._since = time.perf_counter()
        self._batches = 0

    on_validation_end = on_train_epoch_start  # leaves the time of validation out

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: object,
        batch: Sequence[Sized],
        batch_idx: int,
    ) -> None:
        """Logs the speed since the last time."""
        self._batches += 1
        if not self._estimated:
            self._estimate(trainer)
        if pl_module.is_logging:
            images = self._batches * len(batch[0]) * trainer.world_size
            pl_module.log("train/images_per_second", images / (time.perf_counter() - self._since))
            self.on_train_epoch_start(trainer, pl_module)

    def _estimate(self, trainer: Trainer) -> None:
        """Counts from the end of the first step, which may compile or fill caches."""
        steps = trainer.global_step - self._first_step
        if steps == 0 and self._began is None:
            self._began = time.perf_counter()
        if steps < _STEPS or self._began is None:
            return
        self._estimated = True
        left = trainer.estimated_stepping_batches - trainer.global_step
        if trainer.is_global_zero and 0 < left < math.inf:
            seconds = (time.perf_counter() - self._began) / steps * left
            text = timedelta(seconds=math.ceil(seconds))
            note(f"training will take about {text} (h:mm:ss), validation not counted")


class LearningRate(Callback):
    """Logs ``learning_rate`` as one curve; Lightning's monitor draws one per parameter group.

    Our groups have the same learning rate, or by ``--model.layer_decay`` a fixed share of the
    head's, which is drawn. Where they differ otherwise, each has a curve: ``learning_rate/pg1`` and
    so on.
    """

    def __init__(self) -> None:
        self._rates: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Keeps the learning rates of this step, which a schedule changes right after it."""
        whole = [group for group in optimizer.param_groups if group.get(LR_SCALE, 1.0) == 1.0]
        self._rates = [float(group["lr"]) for group in whole or optimizer.param_groups]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Logs them."""
        if pl_module.is_logging:
            names = ["learning_rate"]
            if len(set(self._rates)) > 1:
                names = [f"learning_rate/pg{i}" for i in range(1, len(self._rates) + 1)]
            pl_module.log_dict(dict(zip(names, self._rates, strict=False)))
